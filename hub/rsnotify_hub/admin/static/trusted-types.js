/** The page's Trusted Types policy: which strings may become markup or the URL of a script. */

const CHARTS = "dashboard/vendor/uPlot.iife.min.js";

const policy = globalThis.trustedTypes?.createPolicy("fragments", {
  createHTML: text => text,
  createScriptURL: path => (path === CHARTS ? path : ""),
});

/** Return trusted text for the XML parser, whose result is never inserted into the page. */
export const parsable = text => policy?.createHTML(text) ?? text;

let loading = null;

/** Return uPlot, the library for charts. The first call loads it. */
export function loadCharts() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = policy?.createScriptURL(CHARTS) ?? CHARTS;
    script.onload = () => resolve(globalThis.uPlot);
    script.onerror = () => {
      loading = null; // the next call tries again
      script.remove();
      reject(new Error(`cannot load ${CHARTS}`));
    };
    document.head.append(script);
  });
  return loading;
}
