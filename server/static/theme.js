// Light or dark: as the system has it, unless the reader chose otherwise on this page.
// Classic script in the head, so that the first paint is right already.
(() => {
  const KEY = "dflash-chat:theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is switched off
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  function toggle() {
    const now = root.dataset.theme ?? (system.matches ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    // Back at the system's own theme, follow the system again.
    const choice = (next === "dark") === system.matches ? null : next;
    apply(choice);
    try {
      if (choice) localStorage.setItem(KEY, choice);
      else localStorage.removeItem(KEY);
    } catch {
      // It holds until the page is closed.
    }
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", toggle);
  });
})();
