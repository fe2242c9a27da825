"""What the web page looks like, and its script: no more than to copy a command."""

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1b1f24; --soft: #4f5a66; --paper: #ffffff; --card: #f4f6f8; --line: #c9d1d9;
  --ok: #116329; --error: #b3141d; --warning: #7a4d00; --info: #0550ae; --unknown: #57606a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --soft: #a8b3bf; --paper: #0d1117; --card: #161b22; --line: #3d444d;
    --ok: #56d364; --error: #ff8e87; --warning: #e3b341; --info: #79c0ff; --unknown: #a8b3bf;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
article + article { border-top: 2px solid var(--line); margin-top: 2.5rem; padding-top: 1rem; }
h1, h2.answer { font-size: 1.5rem; line-height: 1.3; margin: .5rem 0 1rem; }
h2, h3 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .6rem 0; }
a { color: var(--info); }
.source, .note, footer { color: var(--soft); }
footer { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: .75rem; }
.lead { font-weight: 600; }
.sign {
  display: inline-block; min-width: 1.4em; height: 1.4em; line-height: 1.4em; padding: 0 .2em;
  border-radius: .7em; text-align: center; font-weight: 700; color: var(--paper);
  background: var(--unknown);
}
.sign.ok { background: var(--ok); }
.sign.error { background: var(--error); }
.sign.warning { background: var(--warning); }
.sign.info { background: var(--info); }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { font-size: .9em; }
.command { position: relative; margin: .6rem 0; }
.command pre {
  margin: 0; padding: .75rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; white-space: pre-wrap; user-select: all;
}
.command button {
  position: absolute; top: .4rem; right: .4rem; font: inherit; font-size: .85rem; color: var(--ink);
  background: var(--paper); border: 1px solid var(--unknown); border-radius: .4rem;
  padding: .1rem .6rem; min-height: 1.75rem; cursor: pointer;
}
.command:has(button:not([hidden])) pre { padding-right: 5.5rem; }
@media (max-width: 36rem) {
  .command button { position: static; display: block; margin: 0 0 .3rem auto; }
  .command button[hidden] { display: none; }
  .command:has(button:not([hidden])) pre { padding-right: .75rem; }
  .command { display: flex; flex-direction: column-reverse; }
}
.table { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td {
  text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--line); font-weight: 400;
}
thead th { color: var(--soft); white-space: nowrap; }
.links td { white-space: nowrap; }
td { min-width: 5.5rem; }
th, .stack { overflow-wrap: break-word; }
details { margin: .75rem 0; padding: .25rem 0; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: minmax(5rem, auto) 1fr; gap: .25rem 1rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
.overview { padding-left: 1.5rem; }
.stack {
  list-style: none; margin: .5rem 0; padding: 0; display: flex; flex-direction: column-reverse;
}
.stack li {
  position: relative; background: var(--card); border: 2px solid var(--line);
  border-left: .5rem solid var(--unknown); border-radius: .5rem; padding: .5rem .75rem;
  margin-top: 1.1rem; display: flex; flex-wrap: wrap; gap: 0 1rem; align-items: baseline;
}
.stack li:last-child { margin-top: 0; }
.stack li + li::after {
  content: ""; position: absolute; left: 1.5rem; bottom: calc(-1.1rem - 2px); height: 1.1rem;
  border-left: 3px solid var(--unknown);
}
.stack li.ok { border-left-color: var(--ok); }
.stack li.error { border-color: var(--error); }
.stack li.warning { border-color: var(--warning); }
.stack li.broken { margin-bottom: 1.1rem; }
.stack li.broken::after {
  border-left: 3px dashed var(--error) !important; height: 2.2rem !important;
  bottom: calc(-2.2rem - 2px) !important;
}
.stack .gap {
  position: absolute; left: 2.4rem; bottom: -1.95rem; color: var(--error); font-weight: 600;
}
.layer { font-weight: 600; min-width: 10rem; }
.version { flex: 1 1 12rem; min-width: 0; overflow-wrap: anywhere; }
.against { color: var(--error); font-weight: 600; flex: 1 1 100%; }
.mismatch { margin: .4rem 0; }
@media (min-width: 48rem) { .stack { max-width: 40rem; } }
@media print {
  :root {
    --ink: #000; --soft: #333; --paper: #fff; --card: #fff; --line: #999;
    --ok: #116329; --error: #b3141d; --warning: #7a4d00; --info: #0550ae; --unknown: #57606a;
  }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  .sign { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .command button { display: none; }
  .command pre { padding-right: .75rem !important; }
  .table { overflow: visible; }
  table { font-size: 9.5pt; }
  td { min-width: 0; }
  table, .command, .stack li, dl { break-inside: avoid; }
  h1, h2, h3, .lead { break-after: avoid; }
  details::details-content { content-visibility: visible; }
  a { color: inherit; }
}
"""

SCRIPT = """
document.querySelectorAll('.command button').forEach(function (button) {
  if (!navigator.clipboard) return;
  var name = button.textContent;
  button.hidden = false;
  button.addEventListener('click', function () {
    navigator.clipboard.writeText(button.parentNode.querySelector('code').textContent)
      .then(function () {
        button.textContent = button.dataset.done;
        setTimeout(function () { button.textContent = name; }, 1500);
      });
  });
});
addEventListener('beforeprint', function () {
  document.querySelectorAll('details').forEach(function (part) { part.open = true; });
});
"""
