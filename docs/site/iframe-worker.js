// Makes the search work where the site is opened from its folder (file://): browsers refuse workers there. In place of a
// worker, its script runs in a hidden frame of the page, in the page's own thread. Material's plugin `offline` would load
// such a stand-in from another site; it leaves that out where a script of this name is given.
"use strict";
(() => {
  if (location.protocol !== "file:") return;

  // What runs in the frame before the worker's script, and gives it what a worker has.
  function inside() {
    const { port1: port, port2: other } = new MessageChannel();
    window.parent.postMessage(null, "*", [other]); // a page of a folder has no origin to name
    window.postMessage = (data, given) => {
      port.postMessage({ data }, Array.isArray(given) ? given : (given?.transfer ?? []));
    };
    // A worker's would wait. Scripts that `await` it find what it brings, here as there.
    window.importScripts = async (...addresses) => {
      const own = document.querySelector("script[src]").src;
      for (const address of addresses) {
        await new Promise((resolve, reject) => {
          const script = document.createElement("script");
          script.src = new URL(address, own);
          script.onload = resolve;
          script.onerror = () => reject(new Error(`${script.src} cannot be loaded`));
          document.head.append(script);
        });
      }
    };
    // A browser keeps to itself what a script of a folder said when it failed: the message is "Script error.".
    const fail = ({ message, target }) => port.postMessage({ error: message ?? `${target.src} cannot be loaded` });
    window.addEventListener("error", fail, true);
    window.addEventListener("load", () => {
      port.onmessage = ({ data }) => {
        const event = new MessageEvent("message", { data });
        window.dispatchEvent(event);
      };
    });
  }

  const expected = new Map(); // window of a frame that begins → who waits for its port
  window.addEventListener("message", (event) => {
    const resolve = expected.get(event.source);
    if (!resolve) return;
    expected.delete(event.source);
    event.stopImmediatePropagation(); // it is no message to the page
    resolve(event.ports[0]);
  });

  class FrameWorker extends EventTarget {
    #frame = document.createElement("iframe");
    #port;

    constructor(address) {
      super();
      this.onmessage = this.onerror = null;
      const script = new URL(address, document.baseURI).href.replaceAll("&", "&amp;");
      this.#frame.hidden = true;
      this.#frame.srcdoc = `<!doctype html><script>(${inside})()</script><script src="${script}"></script>`;
      document.body.append(this.#frame);
      this.#port = new Promise((resolve) => expected.set(this.#frame.contentWindow, resolve));
      this.#port.then((port) => {
        port.onmessage = ({ data }) => this.#tell(data);
      });
    }

    postMessage(data, given) {
      const transfer = Array.isArray(given) ? given : (given?.transfer ?? []);
      const sent = structuredClone(data, { transfer }); // as it is now; the frame may not be there yet
      this.#port.then((port) => port.postMessage(sent));
    }

    terminate() {
      this.#port.then((port) => port.close());
      this.#frame.remove();
    }

    #tell({ data, error }) {
      const event = error === undefined ? new MessageEvent("message", { data }) : new ErrorEvent("error", { message: error });
      this[`on${event.type}`]?.(event);
      this.dispatchEvent(event);
    }
  }

  window.Worker = FrameWorker;
  window.IFrameWorker = FrameWorker; // by this name Material's script knows where it runs, and finds its languages
})();
