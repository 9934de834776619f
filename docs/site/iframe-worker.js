// Search in pages that are opened as files: browsers start no Worker from there, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    onmessage = null;
    onerror = null;

    constructor(url) {
      const frame = (this.frame = document.createElement("iframe"));
      frame.hidden = true;
      // The script answers by postMessage, which in a frame would mean something else. Messages are copies: both sides keep theirs.
      frame.answer = (data) => queueMicrotask(() => this.onmessage?.(new MessageEvent("message", { data: structuredClone(data) })));
      const address = new URL(url, location.href).href.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
      frame.srcdoc =
        "<script>self.postMessage = (data) => frameElement.answer(data)</script>" +
        `<script src="${address}"></script>`;
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve));
      document.body.append(frame);
    }

    async postMessage(data) {
      await this.ready;
      this.frame.contentWindow?.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    }

    terminate() {
      this.onmessage = null;
      this.frame.remove();
    }
  };
}
