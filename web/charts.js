// Line charts on a canvas; used by dashboard.js. Only draws: values and words come from there.

const css = (node, name) => getComputedStyle(node).getPropertyValue(name).trim();

// The least round number that is not below: 1, 2 or 5 times a power of ten.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * power).find(top => top >= value * 0.999999);
}

// series: [{values, color}], values null where there are none; color: name of a CSS variable. mark: index or -1.
export function drawChart(canvas, {series, top, format, span, mark}) {
  const context = canvas.getContext("2d");
  if (!context) return false;
  const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
  if (width === 0) return true; // not shown
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${css(canvas, "font-family") || "sans-serif"}`;
  const faint = css(canvas, "--line"), words = css(canvas, "--soft");
  const left = 40, right = width - 6, up = 8, down = height - 18;
  const n = series[0].values.length;
  const x = i => left + (right - left) * (n > 1 ? i / (n - 1) : 1);
  const y = value => down - (down - up) * Math.min(1, value / top);

  context.strokeStyle = faint;
  context.fillStyle = words;
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const part of [0, 0.5, 1]) {
    const at = Math.round(y(top * part)) + 0.5;
    context.beginPath();
    context.moveTo(left, at);
    context.lineTo(right, at);
    context.stroke();
    context.fillText(format(top * part), left - 6, at);
  }
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillText(span, left, height - 4);
  context.textAlign = "right";
  context.fillText("now", right, height - 4);

  series.forEach(({values, color}, index) => {
    context.strokeStyle = context.fillStyle = css(canvas, color);
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    for (let i = 0; i < n; i++) {
      if (values[i] === null) continue;
      let end = i;
      while (end + 1 < n && values[end + 1] !== null) end++;
      context.beginPath();
      for (let k = i; k <= end; k++) context.lineTo(x(k), y(values[k]));
      context.stroke();
      if (end === i) { // a value that stands alone makes no line
        context.beginPath();
        context.arc(x(i), y(values[i]), 2.5, 0, 7);
        context.fill();
      } else if (index === 0) {
        context.lineTo(x(end), down);
        context.lineTo(x(i), down);
        context.globalAlpha = 0.12;
        context.fill();
        context.globalAlpha = 1;
      }
      i = end;
    }
  });
  if (mark >= 0 && mark < n) {
    context.strokeStyle = words;
    context.beginPath();
    context.moveTo(x(mark), up);
    context.lineTo(x(mark), down);
    context.stroke();
  }
  return true;
}

// The value under a pointer: an index, or -1.
export function indexAt(canvas, clientX, n) {
  const box = canvas.getBoundingClientRect(), part = (clientX - box.left - 40) / (box.width - 46);
  return part < -0.02 || part > 1.02 ? -1 : Math.max(0, Math.min(n - 1, Math.round(part * (n - 1))));
}
