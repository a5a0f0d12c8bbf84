"""What keeps people from using a page: rules of axe-core, and the contrast of its texts."""

from __future__ import annotations

from importlib.resources import files

from tests.browser import Page

_SERIOUS = ("serious", "critical")

#: The texts without the contrast of WCAG 2 AA, 1.4.3. axe-core leaves out what is partly covered.
_FAINT = """[...document.querySelectorAll("body *")].filter(each => each.checkVisibility()
    && [...each.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
  .flatMap(each => {
    const numbers = color => color.match(/^rgba?[(]([^)]+)[)]$/)[1].split(/[, ]+/).map(Number);
    const light = color => numbers(color).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
      .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const style = getComputedStyle(each);
    let behind = each, ground;
    do ground = getComputedStyle(behind).backgroundColor; while (numbers(ground)[3] === 0 && (behind = behind.parentElement));
    const [dark, bright] = [light(style.color), light(ground)].sort((one, other) => one - other);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
    const contrast = (bright + 0.05) / (dark + 0.05);
    return contrast >= (large ? 3 : 4.5) ? [] : [`contrast ${contrast.toFixed(1)}: ${each.outerHTML.slice(0, 200)}`];
  })"""  # noqa: E501


async def barriers(page: Page) -> list[str]:
    """Return the serious and critical violations of a page, each with its element."""
    script = files("axe_core_python").joinpath("axe.min.js").read_text()
    await page.evaluate(f"if (!window.axe) {{ {script}\n}} 0")
    found = await page.evaluate("axe.run()")
    return [
        f"{rule['id']} ({rule['help']}): {node['html']}"
        for rule in found["violations"]
        if rule["impact"] in _SERIOUS
        for node in rule["nodes"]
    ] + list(await page.evaluate(_FAINT))
