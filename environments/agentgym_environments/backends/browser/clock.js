// Time and chance of a page. Time stands still, and goes on by __clock.advance(milliseconds): what a page does then
// depends on the actions taken, never on how fast the machine is.
(() => {
  const begin = Date.UTC(2024, 0, 15, 12), RealDate = Date, frame = 16;
  const timers = new Map();
  let now = 0, last = 0;

  const add = (call, after, every, given) => {
    const code = typeof call === "function" ? call : () => (0, eval)(String(call));
    timers.set(++last, { at: now + Math.max(1, Number(after) || 0), every, run: () => code(...given) });
    return last;
  };
  const remove = id => { timers.delete(Number(id)); };
  window.setTimeout = (call, after, ...given) => add(call, after, 0, given);
  window.setInterval = (call, after, ...given) => add(call, after, Math.max(1, Number(after) || 0), given);
  const real = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = call => add(() => call(now), frame - now % frame, 0, []);
  window.requestAnimationFrame.real = real;
  window.requestIdleCallback = call => add(() => call({ didTimeout: false, timeRemaining: () => 10 }), 1, 0, []);
  window.clearTimeout = window.clearInterval = remove;
  window.cancelAnimationFrame = window.cancelIdleCallback = remove;
  performance.now = () => now;
  window.Date = new Proxy(RealDate, {
    construct: (date, given, target) => Reflect.construct(date, given.length ? given : [begin + now], target),
    apply: () => new RealDate(begin + now).toString(),
    get: (date, name) => name === "now" ? () => begin + now : date[name],
  });

  const due = until => {
    let first = null;
    for (const [id, timer] of timers)
      if (timer.at <= until && (!first || timer.at < first.timer.at)) first = { id, timer };
    return first;
  };
  // A promise, since what timers have promised runs before the next timer.
  const advance = async milliseconds => {
    const until = now + milliseconds;
    for (let next; (next = due(until)); ) {
      now = Math.max(now, next.timer.at);
      if (next.timer.every) next.timer.at = now + next.timer.every;
      else timers.delete(next.id);
      try { next.timer.run(); } catch (error) { console.error(error); }
      await null;
    }
    now = until;
  };
  // Chance before the page is told its seed; the numbers are those of a linear congruential generator.
  let drawn = 1;
  Math.random = () => (drawn = (drawn * 48271) % 2147483647) / 2147483647;
  Object.defineProperty(window, "__clock", { value: { advance } });
})();
