// How fresh HTML is put into a page that somebody is using.

// morph makes a part of the page like what came, and leaves alone what is so
// already: whoever presses a button, selects a text or has opened something
// while the page changes does so with the same element afterwards.
export function morph(old, fresh) {
  if (old.isEqualNode(fresh) || old.dataset?.says) return;
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) return void (old.data = fresh.data);
  const mine = (a) => old.dataset?.touched && (a.name === 'open' || a.name === 'data-touched');
  for (const a of [...old.attributes]) if (!fresh.hasAttribute(a.name) && !mine(a)) old.removeAttribute(a.name);
  for (const a of fresh.attributes) if (!mine(a)) old.setAttribute(a.name, a.value);
  let at = old.firstChild; // what is before it is done
  for (const node of [...fresh.childNodes]) {
    let match = at;
    let left = lookAhead;
    while (match && !alike(match, node)) match = node.nodeType === Node.TEXT_NODE || !left-- ? null : match.nextSibling;
    if (!match) {
      old.insertBefore(node, at);
      continue;
    }
    while (at !== match) at = drop(at);
    at = match.nextSibling;
    morph(match, node);
  }
  while (at) at = drop(at);
}

// lookAhead is how many nodes may have gone at one place before those after it
// are made anew: to look through all for each would take their square.
const lookAhead = 200;

// alike tells whether one becomes the other: then what came before it and what
// went away leave it in its place. The first class says what it is, the others
// how it stands.
function alike(a, b) {
  return a.nodeName === b.nodeName && a.id === b.id && a.classList?.[0] === b.classList?.[0];
}

function drop(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}
