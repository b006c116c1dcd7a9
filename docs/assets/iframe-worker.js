/* Search in pages that are opened as files: browsers start no Worker there, so its script runs in a
   hidden frame. Nothing is fetched but that script. The search of the theme looks for the name. */
class IFrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.onmessage = null
    this.waiting = []
    const frame = document.createElement("iframe")
    frame.hidden = true
    document.body.appendChild(frame)
    const inside = frame.contentWindow
    inside.postMessage = data => {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }
    inside.importScripts = (...urls) =>
      urls.reduce((before, src) => before.then(() => this.load(inside, src)), Promise.resolve())
    this.inside = inside
    this.load(inside, new URL(url, document.baseURI).href).then(() => {
      const waiting = this.waiting
      this.waiting = null
      waiting.forEach(data => this.postMessage(data))
    })
  }

  load(inside, src) {
    return new Promise((done, failed) => {
      const script = inside.document.createElement("script")
      script.src = src
      script.onload = done
      script.onerror = failed
      inside.document.head.appendChild(script)
    })
  }

  postMessage(data) {
    if (this.waiting) this.waiting.push(data)
    else this.inside.dispatchEvent(new MessageEvent("message", { data }))
  }

  terminate() {
    this.inside.frameElement.remove()
  }
}
window.IFrameWorker = IFrameWorker
if (location.protocol === "file:") window.Worker = IFrameWorker
