"""The rules on references between documents, and on packages."""

from __future__ import annotations

from rsnotify.validation.findings import Rule, must, should

TREE_RULES: tuple[Rule, ...] = (  # Between documents.
    must(
        "tree-unreachable",
        "core §6.2",
        "the document that an entry names cannot be fetched; serve it, or remove the entry",
    ),
    should("tree-not-followed", "core §6.2", "the document that an entry names was not checked"),
    must(
        "tree-up",
        "core §6.2",
        "up must lead to the document above, which lists this one; correct one of the two",
    ),
    must(
        "tree-capability",
        "core §6.1",
        "the document is not of the kind stated where it is listed; correct one of the two",
    ),
    must("tree-index", "core §6.2", "the link index must lead to an index that lists the document"),
    should(
        "tree-index-missing",
        "core §6.2",
        "a document listed by an index should link to it; add an rs:ln with rel index",
    ),
    must(
        "tree-index-nested",
        "core §7",
        "an index groups documents of the urlset format; an index must not list an index",
    ),
    must(
        "tree-times",
        "core §7",
        "at, completed, from or until of the entry differ from those of the document itself",
    ),
    must(
        "tree-until-missing", "core §12.2", "the list is closed, so that its entry must have until"
    ),
    must(
        "tree-until-early", "core §12.2", "the list is open, so that its entry must not have until"
    ),
    must(
        "tree-contents",
        "core §11.1",
        "the Manifest that contents leads to must equal that in the package",
    ),
    should(
        "tree-well-known",
        "core §6.3.2",
        "a Source Description should be at /.well-known/resourcesync of the host; publish it there",
    ),
    # Packages.
    should(
        "package-format",
        "core §11.1",
        "the package is not a readable ZIP file; only programs that know its format can read it",
    ),
    must(
        "package-unsafe",
        "core §11.2",
        "a member of the package has a name or form that no reader should unpack",
    ),
    must(
        "package-manifest-missing",
        "core §11.2",
        "a package must have a file manifest.xml at its top level; add the Manifest",
    ),
    must(
        "package-path-missing",
        "core §11.2",
        "the package has no file at this path of its Manifest; add it, or correct the path",
    ),
    should(
        "package-not-described",
        "core §11.2",
        "the Manifest does not describe a file of the package; add an entry",
    ),
    must(
        "package-content",
        "core §7",
        "the content does not have the stated hash or length",
    ),
)
