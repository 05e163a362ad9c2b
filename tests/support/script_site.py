"""A site that needs a browser, and pages that do to a browser what they can."""

import gzip

from tests.support.pages import Answer, Pages

APP = """<!DOCTYPE html>
<title>Parcels</title><div id=list></div><img src=/picture.png>
<script>fetch('/data').then(answer => answer.json()).then(data => {
  for (const one of data) document.getElementById('list').innerHTML += `<p>${one}</p>`;
});</script>"""
MORE = """<!DOCTYPE html>
<ul id=list><li>1</li></ul><input id=name><button class=more>More</button>
<div id=tall style="height: 2000px"></div>
<script>
const add = text => document.getElementById('list').append(
  Object.assign(document.createElement('li'), {textContent: text}));
document.querySelector('.more').onclick = async event => {
  const known = document.querySelectorAll('li').length;
  add(await (await fetch('/more/' + known)).text());
  if (known == 3) event.target.remove();
};
document.getElementById('name').onkeydown = event => {
  if (event.key == 'Enter') add(event.target.value);
};
addEventListener('scroll', () => {
  const tall = document.getElementById('tall');
  if (tall.offsetHeight > 5000) return;
  tall.style.height = tall.offsetHeight + 2000 + 'px';
  add('scrolled');
});
</script>"""
MISBEHAVIOUR = {
    "requests": "<script>for (let n = 0; n < 300; n++) fetch('/data?' + n)</script>",
    "frames": "<script>for (let n = 0; n < 300; n++) document.body.append("
    "Object.assign(document.createElement('iframe'), {src: '/data?' + n}))</script>",
    "pictures": "<script>for (let n = 0; n < 3000; n++) new Image().src = '/picture?' + n</script>",
    "calls": "<script>for (let n = 0; n < 300; n++) { const call = new RTCPeerConnection({"
    "iceServers: [{urls: `turn:h${n}.example?transport=tcp`, username: 'a', credential: 'b'}]});"
    "call.createDataChannel('x');"
    "call.createOffer().then(offer => call.setLocalDescription(offer)) }</script>",
    "errors": "<script>for (let n = 0; n < 3000; n++) setTimeout(() => { throw n })</script>",
    "console": "<script>for (let n = 0; n < 3000; n++) console.log(n)</script>",
    "traffic": "<script>fetch('/large')</script>",
    "dialogs": "<script>for (let n = 0; n < 100; n++) alert(n)</script>",
    "popups": "<script>for (let n = 0; n < 100; n++) window.open('/popup')</script>",
    "workers": "<script>for (let n = 0; n < 100; n++) new Worker('/worker.js')</script>",
    "grows": "<script>document.body.append(document.createComment('x'.repeat(2_000_000)))</script>",
    "spins": "<p>a<script>setTimeout(() => { for (;;); }, 100)</script>",
    "spins_at_once": "<script>for (;;);</script>",
    "loops": "<script>location = '/loops?' + Math.random()</script>",
    "crashes": "<script>const held = []; for (;;) held.push(new Array(4e6).fill(0.5))</script>",
    "closes": "<script>window.open('', '_self'); window.close()</script><p>still here",
    "leaves": "<p>still here</p><script>location = 'data:text/html,elsewhere'; location = 'file:///etc/passwd';"
    "location = '/report.pdf'</script>",
}
"""Bodies of pages that misbehave, by what they do."""


class ScriptSite(Pages):
    """Serves all of it; what a test adds to `answers` goes first."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(host)
        self.rule = self.answer
        script = {"Content-Type": "text/javascript"}
        self.answers = {
            "/app": Answer(APP),
            "/more": Answer(MORE),
            "/data": Answer('["one", "two"]', headers={"Content-Type": "application/json"}),
            "/large": Answer("x" * 3_000_000),
            "/large.html": Answer("<p>" + "x" * 1_200_000),
            "/bomb": Answer(
                gzip.compress(b"<p>" + b" " * 3_000_000), headers={"Content-Encoding": "gzip"}
            ),
            "/worker.js": Answer("", headers=script),
            "/report.pdf": Answer(
                bytes(range(256)) * 2, headers={"Content-Type": "application/pdf"}
            ),
            "/latin": Answer(
                "<p>\u00e9\u20ac".encode("cp1252"),
                headers={"Content-Type": "text/html; charset=cp1252"},
            ),
            "/export": Answer(
                "a;b", headers={"Content-Disposition": "attachment; filename=a.html"}
            ),
            "/endless": Answer("", 302, {"Location": "/endless"}),
            "/inwards": Answer("", 302, {"Location": "http://169.254.169.254/latest/meta-data"}),
            **{f"/{name}": Answer(f"<body>{body}") for name, body in MISBEHAVIOUR.items()},
            "/service.js": Answer("", headers=script),
            "/shared": Answer("<body><script>new SharedWorker('/shared.js')</script>"),
            "/shared.js": Answer("fetch('/data?shared')", headers=script),
            **{f"/more/{number}": Answer(f"{number + 1}") for number in range(10)},
        }

    def answer(self, path: str) -> Answer | None:
        """Redirect `/bounce?URL`; other queries change nothing."""
        name, _, query = path.partition("?")
        if name == "/bounce":
            return Answer("", 302, {"Location": query})
        return self.answers.get(name)

    def intrude(self, targets: list[str], socket: str, stun: int) -> None:
        """Have a page `/intruder` that tries to reach URLs in all the ways that pages have."""
        tags = "".join(
            f"<img src={url}/img><link rel=stylesheet href={url}/css><script src={url}/js></script>"
            f"<iframe src={url}/frame></iframe><link rel=preconnect href={url}>"
            f"<link rel=dns-prefetch href={url}><link rel=prefetch href={url}/prefetch>"
            f"<link rel=preload as=fetch href={url}/preload><object data={url}/object></object>"
            f"<video src={url}/video></video><iframe src='/bounce?{url}/bounced'></iframe>"
            f"<script>fetch('{url}/fetch', {{mode: 'no-cors'}}).catch(() => {{}});"
            f"navigator.sendBeacon('{url}/beacon', 'x'); window.open('{url}/popup');"
            f"fetch('/bounce?{url}/redirected', {{mode: 'no-cors'}}).catch(() => {{}});"
            f"new Worker(URL.createObjectURL(new Blob([`fetch('{url}/worker', {{mode: 'no-cors'}})`"
            "])));"
            f"try {{ new WebSocket('{socket}') }} catch {{}}</script>"
            '<script type=speculationrules>{"prefetch": [{"source": "list", "eagerness": '
            f'"immediate", "urls": ["{url}/rules"]}}]}}</script>'
            for url in targets
        )
        calls = (
            "<script>try { ServiceWorkerContainer.prototype.register.call(navigator.serviceWorker,"
            "'/service.js').catch(() => {}) } catch {}"
            "const call = new RTCPeerConnection({iceServers: "
            f"[{{urls: 'stun:127.0.0.1:{stun}'}}]}});"
            "call.createDataChannel('x');"
            "call.createOffer().then(offer => call.setLocalDescription(offer));"
            "const link = document.createElement('a'); link.href = '/export'; link.download = 'x';"
            "document.body.append(link); link.click();</script>"
        )
        self.answers["/intruder"] = Answer(f"<body>{tags}{calls}")
