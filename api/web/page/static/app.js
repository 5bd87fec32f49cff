// The pages are whole without this script. It makes them live, and lets the
// list stay where it is while units come and go. What is shown comes from the
// server as HTML, always; events only say what to ask for again.
import { morph } from './morph.js';

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const viewer = $('.viewer');
const list = $('#list');
const detail = $('#detail');
const still = $('[data-still]'); // made-up data: nothing changes
// A page of one part is asked for again as a whole when what it follows changes.
const page = $('[data-follow]');
const live = (viewer || page) && !still;

// ask fetches a part of a page. A part that was asked for later wins.
const asked = {};
async function ask(part, url, slot = part) {
  asked[slot]?.abort();
  const turn = (asked[slot] = new AbortController());
  const answer = await fetch(url, { headers: { 'X-Part': part }, signal: turn.signal });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return parse(await answer.text());
}

function parse(html) {
  const t = document.createElement('template');
  t.innerHTML = html;
  return t.content;
}

const passing = (err) => {
  if (err.name !== 'AbortError') say('not up to date: ' + err.message);
};

function say(text) {
  const link = $('#link');
  link.hidden = !text;
  link.textContent = text;
}

// ---- Times ---------------------------------------------------------------

function lasted(ms) {
  const s = Math.max(ms, 0) / 1000;
  if (s < 60) return s.toFixed(1) + ' s';
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, '0')} s`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, '0')} min`;
}

function ago(ms) {
  if (ms < 60e3) return 'just now';
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ago`;
  if (ms < 48 * 3600e3) return `${Math.floor(ms / 3600e3)} h ago`;
  return null; // the date that is there already
}

function tick() {
  if (document.hidden || still) return;
  const now = Date.now();
  for (const t of $$('time[data-since]')) t.textContent = lasted(now - Date.parse(t.dataset.since));
  for (const t of $$('time[data-ago]')) {
    const text = ago(now - Date.parse(t.dateTime));
    if (text && t.textContent !== text) t.textContent = text;
  }
}
setInterval(tick, 500);

// ---- The list --------------------------------------------------------------

const unitPath = /^\/units\/([0-9a-f-]{36})$/;
const filter = () => {
  const query = new URLSearchParams(location.search);
  for (const name of ['run', 'at', 'after', 'done']) query.delete(name);
  const text = query.toString();
  return text ? '?' + text : '';
};
const cardID = (card) => card.id.slice('card-'.length);
const mark = () => {
  const here = location.pathname;
  for (const a of $$('.card a')) a.pathname === here ? a.setAttribute('aria-current', 'true') : a.removeAttribute('aria-current');
};

// merge brings cards up to date, newest first; ids are in the order of time.
function merge(fresh) {
  const cards = $('#cards', list);
  let next = cards.firstElementChild; // fresh cards are in the same order: one walk places all
  for (const card of $$('.card', fresh)) {
    const old = document.getElementById(card.id);
    if (old) {
      morph(old, card);
      continue;
    }
    while (next && next.id >= card.id) next = next.nextElementSibling;
    cards.insertBefore(card, next);
  }
  if (cards.childElementCount) $('.empty', list)?.remove();
}

// refresh fetches the first page of the list again.
async function refresh() {
  const fresh = await ask('list', '/' + filter());
  const top = $$('.card', fresh);
  const last = top.at(-1)?.id ?? '';
  const known = new Set(top.map((c) => c.id));
  if (list.scrollTop > 80 && top.some((c) => !document.getElementById(c.id))) {
    offerFresh(top.filter((c) => !document.getElementById(c.id)).length);
    for (const c of top) if (!document.getElementById(c.id)) c.remove();
  } else {
    $('.fresh', list)?.remove();
    if (!$('#more', list) && $('#more', fresh)) list.append(reveal($('#more', fresh)));
  }
  putPills(fresh);
  merge(fresh);
  for (const c of $$('.card', list)) if (c.id >= last && !known.has(c.id)) c.remove(); // it no longer is like this
  if (!$('.card', list) && $('.empty', fresh) && !$('.empty', list)) list.append($('.empty', fresh));
  mark();
}

function putPills(fresh) {
  for (const id of ['pills', 'bulk']) morph($('#' + id, list), $('#' + id, fresh));
}

function offerFresh(count) {
  let button = $('.fresh', list);
  if (!button) {
    button = document.createElement('button');
    button.className = 'fresh';
    button.onclick = () => {
      list.scrollTop = 0;
      button.remove();
      refresh().catch(passing);
    };
    $('#cards', list).before(button);
  }
  button.textContent = count === 1 ? 'One newer unit' : `${count} newer units`;
}

// Endless scroll: the link to older units is followed when it comes in sight.
const sight = new IntersectionObserver((entries) => {
  for (const e of entries) if (e.isIntersecting) older(e.target).catch(passing);
}, { rootMargin: '600px' });

function reveal(link) {
  if (!still) sight.observe(link);
  return link;
}

async function older(link) {
  sight.unobserve(link);
  const fresh = await ask('cards', link.href, 'older');
  $('#cards', list).append(...$$('.card', fresh));
  const next = $('#more', fresh);
  next ? link.replaceWith(reveal(next)) : link.remove();
}

// ---- One unit --------------------------------------------------------------

// open shows a unit beside the list; without history it was the browser that
// went there.
async function open(url, history = true) {
  const to = new URL(url, location);
  if (history) {
    window.history.pushState(null, '', to);
    tell();
  }
  viewer.classList.toggle('open', unitPath.test(to.pathname));
  mark();
  if (!unitPath.test(to.pathname)) {
    follow(null);
    detail.replaceChildren(parse('<div class="nothing"><p>Select a unit to see its whole story.</p></div>'));
    document.title = 'Units · Piecework';
    return;
  }
  detail.setAttribute('aria-busy', 'true');
  try {
    const fresh = await ask('unit', to, 'detail');
    detail.replaceChildren(fresh);
    document.title = ($('h1', detail)?.textContent ?? 'Unit') + ' · Piecework';
    detail.scrollTop = 0;
    shown();
    $(to.hash || '#none', detail)?.scrollIntoView();
  } catch (err) {
    if (err.name === 'AbortError') return;
    follow(null);
    const p = document.createElement('p');
    p.className = 'bad';
    p.textContent = `This unit cannot be shown: ${err.message}`;
    const again = document.createElement('button');
    again.textContent = 'Try again';
    again.onclick = () => open(to, false);
    detail.replaceChildren(p, again);
  } finally {
    detail.removeAttribute('aria-busy');
  }
}

// anew brings the whole of the open unit up to date: its first steps have come,
// or another run has begun.
async function anew() {
  const at = open_;
  const fresh = await ask('unit', location, 'detail');
  if (open_ !== at) return;
  if (($('#head', fresh).dataset.attempt ?? '') !== at.attempt) $('#steps', detail)?.remove(); // those of the run before
  morph($('.unit', detail), $('.unit', fresh));
  shown();
  open_.dirty.add('all'); // what was told meanwhile
}

// shown is called when a unit has just been put on the page.
function shown() {
  offerFold();
  follow($('#head', detail));
}

// offerFold shows what folds all calls, or unfolds them when none is open.
function offerFold() {
  const button = $('[data-fold]', detail);
  if (!button) return;
  button.hidden = !$('.call', detail);
  button.textContent = $('.call[open]', detail) ? 'Fold all' : 'Unfold all';
}

// draft shows words that are on their way, below the steps: the step that will
// have them takes their place.
function draft(text) {
  const box = $('.unit', detail);
  if (!box) return;
  const along = atEnd();
  const line = $('.draft', box) ?? box.appendChild(Object.assign(document.createElement('p'), { className: 'draft' }));
  line.ariaHidden = 'true'; // the step is read out, once
  line.textContent = text.replace(/[\p{Cc}\p{Cf}]/gu, (c) => (/[\n\t]/.test(c) ? c : '\ufffd')); // the step shows them by number
  if (along) toEnd();
}

function putSteps(fresh) {
  $('.draft', detail)?.remove();
  const steps = $('#steps', detail);
  if (!steps) return $('.step', fresh) && anew(); // the first have come
  for (const id of ['totals', 'timeline']) morph(document.getElementById(id), $('#' + id, fresh));
  const incoming = $('#steps', fresh);
  // From the end: that is where most come, however many there are.
  let next = $('.gap:last-child', steps);
  if (next === steps.firstElementChild) next = null;
  for (const step of $$('.step', incoming).reverse()) {
    const old = document.getElementById(step.id);
    if (old) {
      morph(old, step);
      continue;
    }
    const number = Number(step.dataset.number);
    for (let before; (before = next ? next.previousElementSibling : steps.lastElementChild)?.matches('.step') && Number(before.dataset.number) > number;) next = before;
    steps.insertBefore(step, next);
    next = step;
  }
  offerFold();
  if (incoming.dataset.firstError) steps.dataset.firstError = incoming.dataset.firstError;
}

const stepsURL = (unit, attempt, query) => `/units/${unit}/steps?run=${attempt}&${query}`;

// atEnd tells whether the reader is at the end of the transcript: then the
// page goes along as it grows, and otherwise never.
const phone = matchMedia('(max-width: 48rem)');
const box = () => (phone.matches ? document.scrollingElement : detail);
const atEnd = () => box().scrollHeight - box().scrollTop - box().clientHeight < 60;
const toEnd = () => (box().scrollTop = box().scrollHeight);

// ---- Live -------------------------------------------------------------------

let stream; // of the page: all units, and the one that is open
let open_ = null; // the unit that is followed: {unit, attempt, dirty, head}
let heard = 0; // when there was news last
let lists = false, cards = new Set(); // what has changed about the list: anything, and these units

function follow(element) {
  const unit = element?.dataset.unit ?? '';
  const attempt = element?.dataset.attempt ?? '';
  const rev = $('#steps', detail)?.dataset.rev ?? 0;
  open_ = unit ? { unit, attempt, batch: element.dataset.batch, newest: 'newest' in element.dataset, dirty: new Set(), head: false, place: `0.${attempt || 0}.0.${rev}` } : null;
  if (!still && (!stream || stream.unit !== unit)) connect();
}

function connect() {
  stream?.source.close();
  clearTimeout(stream?.later);
  const unit = open_?.unit ?? '';
  const source = new EventSource(page?.dataset.follow ?? '/live' + (unit ? '?' + new URLSearchParams({ unit, after: open_.place, ...(open_.batch && { of: open_.batch }) }) : ''));
  const mine = (stream = { source, unit, pause: stream?.pause ?? 0 });
  source.onopen = () => {
    mine.pause = 0;
    say('');
  };
  source.onerror = () => {
    // The browser would come again by itself, but from the place it began at.
    source.close();
    if (stream !== mine) return;
    say('connecting again …');
    mine.pause = Math.min((mine.pause || 250) * 2, 10e3);
    mine.later = setTimeout(() => stream === mine && connect(), mine.pause);
  };
  const on = (name, does) => source.addEventListener(name, (e) => {
    if (stream !== mine) return;
    heard = performance.now();
    does(JSON.parse(e.data), e.lastEventId);
    soon();
  });
  const ofUnit = (name, does) => on(name, (data, id) => {
    if (open_?.unit !== unit) return;
    open_.place = id;
    does(data);
  });
  on('hello', () => (lists = true));
  on('lagged', () => (lists = true)); // of the unit, what was missed follows
  on('batches', () => {
    if (page) lists = true;
    else if (open_ && 'held' in $('#head', detail).dataset) open_.head = true; // why the batch holds the unit
  });
  on('units', ({ items }) => {
    for (const u of items) cards.add(u.id);
  });
  source.addEventListener('draft', (e) => {
    const d = JSON.parse(e.data);
    if (stream === mine && open_?.unit === unit && String(d.attempt) === open_.attempt) draft(d.text);
  });
  ofUnit('unit', () => (open_.head = true));
  ofUnit('run', () => (open_.head = true));
  ofUnit('end', () => (open_.head = true) && open_.dirty.add('all'));
  ofUnit('step', (s) => String(s.attempt) === open_.attempt && open_.dirty.add(s.number));
}

// rounds does what events asked for, one round at a time: what comes meanwhile
// goes with the next.
function rounds(due, round, pause, share) {
  // What takes its time to be made is asked for less often.
  const rest = (begun) => Math.max(pause(), share * (performance.now() - begun));
  let busy = false;
  return async function soon() {
    if (busy || !due()) return;
    busy = true;
    const begun = performance.now();
    let wait = 0;
    try {
      await round();
    } catch (err) {
      passing(err);
      wait = 1000;
    }
    await new Promise((done) => setTimeout(done, Math.max(wait, rest(begun))));
    busy = false;
    soon();
  };
}
const soonUnit = rounds(() => open_?.head || open_?.dirty.size, roundOfUnit, () => 20, 0);
// A list need not change more often than people read, and the units of a batch
// may be many.
const ofBatch = () => page || new URLSearchParams(location.search).has('batch');
const soonList = rounds(() => lists || cards.size, page ? roundOfPage : roundOfList, () => (ofBatch() ? 1000 : 200), 4);
const soon = () => {
  soonUnit();
  soonList();
};

async function roundOfPage() {
  lists = false;
  cards = new Set();
  try {
    const { part } = page.dataset, begun = performance.now();
    const fresh = $('#part', await ask(part, location.pathname + location.search));
    morph($('#part'), fresh);
    if (begun - (fresh.dataset.age ?? 0) < heard) lists = true; // it is from before the news
  } catch (err) {
    lists = true;
    throw err;
  }
}

// numbersOf is which steps to ask for: those that are new, or in sight, and the
// calls that run.
function numbersOf(dirty) {
  const shown = $$('.step', detail).map((s) => Number(s.dataset.number));
  const wanted = dirty.has('all') ? [`${Math.max(1, ...shown)}-`] : [...dirty].filter((n) => n >= (shown[0] ?? 0));
  for (const call of $$('.call.running', detail)) wanted.push(call.closest('.step').dataset.number);
  return [...new Set(wanted)].join(',');
}

async function roundOfUnit() {
  const at = open_;
  if (!at) return;
  const dirty = at.dirty, head = at.head;
  at.dirty = new Set();
  at.head = false;
  let stay;
  try {
    const wanted = dirty.size && at.attempt ? numbersOf(dirty) : '';
    const [fresh, transcript] = await Promise.all([
      head && ask('head', `/units/${at.unit}${location.search}`),
      wanted && ask('steps', stepsURL(at.unit, at.attempt, 'n=' + wanted)),
    ]);
    if (open_ !== at) return;
    stay = atEnd() && $('.step', detail); // now: the reader may have gone elsewhere meanwhile
    if (fresh) {
      const old = $('#head', detail), put = $('#head', fresh);
      if ((put.dataset.attempt ?? '') !== at.attempt && at.newest) return await anew(); // a new run began
      morph(old, put);
    }
    if (transcript) await putSteps(transcript);
  } catch (err) {
    for (const n of dirty) at.dirty.add(n); // not lost: the next round asks again
    at.head ||= head;
    throw err;
  }
  if (stay) toEnd();
}

async function roundOfList() {
  if (!lists && !cards.size) return;
  const changed = cards, all = lists;
  cards = new Set();
  lists = false;
  const beyond = [...changed].filter((id) => document.getElementById('card-' + id)).slice(0, 100);
  try {
    if (all || changed.size) await refresh();
    const top = new Set($$('.card', list).slice(0, 50).map(cardID));
    const rest = beyond.filter((id) => !top.has(id));
    if (rest.length) merge(await ask('cards', `/cards${filter()}${filter() ? '&' : '?'}ids=${rest.join(',')}`, 'beyond'));
    mark();
  } catch (err) {
    lists = true;
    throw err;
  }
}

// ---- Deeds ----------------------------------------------------------------------

// A page that asks before something is done becomes a dialog, and its form is
// sent from where the reader is. On other pages forms are sent as ever.
const dialog = $('#ask');
const notice = $('#notice');

// partOf fetches a part with its status, be it good or bad.
async function partOf(part, url, body) {
  const answer = await fetch(url, { method: body ? 'POST' : 'GET', body, headers: { 'X-Part': part } });
  if (answer.headers.get('Content-Type')?.startsWith('text/html')) return { status: answer.status, content: parse(await answer.text()) };
  const problem = await answer.json().catch(() => ({}));
  throw new Error(problem.detail ?? `${answer.status} ${answer.statusText}`);
}

function paragraph(text) {
  const p = document.createElement('p');
  p.className = 'bad';
  p.textContent = text;
  return p;
}

const tell = (...content) => notice?.replaceChildren(...content);

let asking;
async function question(url) {
  const turn = (asking = {});
  try {
    const { content } = await partOf('ask', url);
    if (asking !== turn || dialog.open) return;
    dialog.replaceChildren(content);
    dialog.showModal();
  } catch (err) {
    notice ? tell(paragraph('That cannot be done now: ' + err.message)) : location.assign(url);
  }
}

// dismiss closes what a link stands in.
function dismiss(link) {
  if (dialog.contains(link)) dialog.close();
  else if (notice?.contains(link)) tell();
  else return false;
  return true;
}

const doKey = (key) => {
  const link = $(`[data-key="${key}"]`, detail ?? document);
  if (!link) return false;
  link.click();
};

document.addEventListener('submit', async (e) => {
  const form = e.target;
  if (!(viewer || page) || !form.matches('[data-act]')) return;
  e.preventDefault();
  const button = $('button:not([type])', form);
  if (button.disabled) return; // once is enough
  button.disabled = true;
  try {
    const { status, content } = await partOf('notice', form.getAttribute('action'), new URLSearchParams(new FormData(form)));
    if (status === 422) {
      dialog.replaceChildren(content);
      return;
    }
    dialog.close();
    tell(content);
    lists = true;
    if (open_) open_.head = true;
    soon();
    if (document.activeElement === document.body) (detail ?? page).focus();
  } catch (err) {
    $('[role=alert]', form)?.remove();
    const said = paragraph(`It is not known to be done: ${err.message}. Try again.`);
    said.setAttribute('role', 'alert');
    dialog.contains(form) ? form.prepend(said) : tell(said);
  } finally {
    button.disabled = false;
  }
});

// ---- What people do -----------------------------------------------------------

function choose(step) {
  const links = $$('.card a', list);
  const at = links.findIndex((a) => a.hasAttribute('aria-current') || a === document.activeElement);
  const next = links[Math.min(Math.max(at + step, 0), links.length - 1)];
  next?.scrollIntoView({ block: 'nearest' });
  next?.focus({ preventScroll: true });
  if (next && !phone.matches) open(next.href);
}

function toStep(number) {
  const step = document.getElementById('step-' + number);
  if (!step) return false;
  for (const d of $$('details', step)) if (d.classList.contains('error')) d.open = true;
  window.history.replaceState(null, '', '#step-' + number);
  step.scrollIntoView({ block: 'start' });
  return true;
}

document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.target.closest('input, textarea, select, dialog')) {
    if (e.key === 'Escape') e.target.blur();
    return;
  }
  const does = {
    j: () => choose(1),
    k: () => choose(-1),
    '/': () => $('#q')?.focus(),
    '?': () => $('#help').showModal(),
    Escape: () => viewer && unitPath.test(location.pathname) && open('/' + filter()),
    e: () => $('.first-error', detail)?.click(),
    g: () => detail && toEnd(),
    c: () => doKey('c'),
    r: () => doKey('r'),
    Enter: () => e.target.matches('.card a') && (e.target.click(), detail.focus()),
  }[e.key];
  if (!does) return;
  if (does() !== false && e.key !== 'Enter') e.preventDefault();
});

// copy puts a text on the clipboard; browsers give the newer way to it only to
// pages that came by https, or from this machine.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const put = (e) => {
    e.clipboardData.setData('text/plain', text);
    e.preventDefault();
  };
  document.addEventListener('copy', put);
  const done = document.execCommand('copy');
  document.removeEventListener('copy', put);
  if (!done) throw new Error('the browser does not let this page copy');
}

document.addEventListener('click', (e) => {
  const link = e.target.closest('a, button, summary');
  if (!link || e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
  if (link.matches('summary')) {
    link.parentElement.dataset.touched = 'true';
    setTimeout(offerFold); // when it has opened or closed
    return;
  }
  if (link.matches('[data-copy]')) {
    const text = document.getElementById(link.dataset.copy)?.textContent ?? '';
    const says = (text) => (link.textContent = link.dataset.says = text);
    copy(text).then(() => says('Copied'), () => says('Select and copy by hand')).then(() => setTimeout(() => {
      link.textContent = 'Copy';
      delete link.dataset.says;
    }, 1500));
    return;
  }
  if (link.matches('[data-fold]')) {
    const calls = $$('.call', detail);
    const shut = calls.some((d) => d.open);
    for (const d of calls) [d.open, d.dataset.touched] = [!shut, 'true'];
    offerFold();
    return;
  }
  if (link.matches('[data-ask]')) {
    e.preventDefault();
    question(link.href);
    return;
  }
  if (link.matches('[data-dismiss]') && dismiss(link)) return e.preventDefault();
  if (link.matches('[data-step]') && toStep(link.dataset.step)) return e.preventDefault();
  if (link.matches('.whole')) {
    e.preventDefault();
    const step = link.closest('.step');
    ask('steps', link.href, 'whole').then((fresh) => {
      for (const d of $$('details', step)) d.dataset.touched = 'true';
      putSteps(fresh);
    }).catch(passing);
    return;
  }
  if (link.matches('.gap a')) {
    e.preventDefault();
    const gap = link.closest('.gap');
    const before = gap.nextElementSibling?.classList.contains('step');
    const numbers = $$('.step', detail).map((s) => Number(s.dataset.number));
    const from = Number(link.dataset.from);
    const range = before ? `${from}-${numbers[0] - 1}` : `${from}-${from + 199}`;
    ask('steps', stepsURL($('#head').dataset.unit, $('#head').dataset.attempt, 'n=' + range), 'gap').then((fresh) => {
      const anchor = gap.nextElementSibling, top = anchor?.getBoundingClientRect().top;
      putSteps(fresh);
      if (before) {
        from > 1 ? (link.dataset.from = String(Math.max(1, from - 200))) : gap.remove();
        box().scrollTop += anchor.getBoundingClientRect().top - top; // what was read stays in place
      } else if (from + 200 > Number($('#steps', fresh)?.dataset.total ?? 0)) gap.remove();
      else link.dataset.from = String(from + 200);
    }).catch(passing);
    return;
  }
  if (!viewer || !link.href || link.origin !== location.origin || link.target) return;
  const isUnit = unitPath.test(link.pathname);
  if (isUnit && link.pathname === location.pathname && link.hash && link.search === location.search) return; // within the page
  if (isUnit || link.matches('.back')) {
    e.preventDefault();
    open(link.href);
  }
});

addEventListener('popstate', () => {
  if (viewer) open(location, false);
});
addEventListener('pagehide', () => stream?.source.close());
addEventListener('pageshow', (e) => e.persisted && live && connect());
// A browser has few connections for one server: who does not look needs none.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return stream?.source.close();
  tick();
  if (live) connect();
});

// The search works while it is typed, without a button.
let typing;
$('#q')?.addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const query = new URLSearchParams(filter());
    const q = $('#q').value.trim();
    q ? query.set('q', q) : query.delete('q');
    const text = query.toString();
    window.history.replaceState(null, '', location.pathname + (text ? '?' + text : ''));
    if (page) return roundOfPage().catch(passing);
    ask('list', '/' + filter(), 'list').then((fresh) => {
      putPills(fresh);
      for (const e of $$('.cards, .more, .empty, .fresh', list)) e.remove();
      list.append(...$$('#cards, #more, .empty', fresh));
      $('#more', list) && reveal($('#more', list));
      mark();
    }).catch(passing);
  }, 200);
});

if ((viewer || page) && new URLSearchParams(location.search).has('done')) window.history.replaceState(null, '', location.pathname + filter() + location.hash);
if (page && live) connect();
if (viewer) {
  const more = $('#more');
  if (more) reveal(more);
  $('#head') ? shown() : follow(null);
  if (location.hash) toStep(location.hash.replace('#step-', ''));
}
tick();
