#!/usr/bin/env python3
"""Small templates, one or two constructs each, with what Jinja2 makes of them.

  make_jinja_cases.py [--out tests/data/chat/jinja_cases.jsonl]

The environment is the one transformers uses for chat templates: ImmutableSandboxedEnvironment, trim_blocks and
lstrip_blocks on, loop controls, tojson = json.dumps(ensure_ascii=False), raise_exception, from_json.  One JSON object
per line: template, vars, and rendered (null when rendering must fail).
"""
import argparse
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox

VARS = {
    "s": "Hello World", "u": "naïve 温度 👩‍🚀", "e": "", "n": None, "i": 7, "neg": -7, "f": 2.5, "t": True, "z": 0,
    "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"b": 1, "a": {"x": [1, "two", None, True, 1.5]}, "items": 9},
    "m": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": "yo", "n": 1},
          {"role": "user", "content": "<b>", "n": 3}],
    "sp": "  x y\t\n", "lines": "one\ntwo\n\nthree", "js": "{\"k\": [1, 2.0, \"é\"]}",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3|7 / 2|7 // 2|neg // 2|neg % 3|7 % neg|2 ** 10|2 ** -1|-2 ** 2|7.5 // 2|-7.5 % 2|1 / 3|1e20|1e16|123456789012345.0|0.1 + 0.2|1e-5|0.0001|-0.0|100.0|1_000|0x1f|True + 1|t * 3
'a' + 'b'|'a' ~ 1 ~ n ~ t|'ab' * 3|3 * 'ab'|[1] + [2]|[0] * 3|(1,) + (2,)|1 ~ 2 + 3 if false else 'x'|'a' 'b'|"q\"q'"|'\n\t\\ \u00e9 \x41'|'a\qb'
1 < 2 < 3|1 < 3 < 2|1 == 1.0|'a' == 'a'|[1, 2] == [1, 2.0]|{'a': 1} == {'a': 1}|'a' < 'b'|[1, 2] < [1, 3]|n == none|1 != 2|'el' in s|'x' not in s|2 in l|'b' in d|none in [none]|t == 1
not e|e or 'dflt'|s and 1|n or z or 'x'|1 if t else 2|1 if e|(1 if e) is defined|not t and f|'x' if z else 'y' if e else 'zz'
s[0]|s[-1]|s[1:4]|s[::-1]|s[:-3]|s[::2]|s[4:1:-1]|u[6:8]|u[::-1]|u|length|l[0]|l[-1]|l[::-1]|l[1:]|l[:1]|l[5]|l[-9:9]|(1, 2, 3)[1:]|d['b']|d.b|d.a.x[1]|d['a']['x'][-1]|d.nope|d['nope']|m[0].role|m[-1]['content']|l.0
d.items() | list|d['items']|d.keys() | list|d.values() | list|d.get('b')|d.get('q')|d.get('q', 5)
s.upper()|s.lower()|s.split()|s.split('o')|s.split('o', 1)|s.split('o')[-1]|'a,b,,c'.split(',')|'a,b,c'.rsplit(',', 1)|' a  b '.split()|'a b c'.split(None, 1)|sp.strip()|sp.lstrip()|sp.rstrip()|'xxaxx'.strip('x')|'\n\nab\n'.strip('\n')|'xyaxy'.lstrip('yx')|s.startswith('He')|s.endswith('ld')|s.startswith(('a', 'H'))|s.replace('o', '0')|s.replace('o', '0', 1)|s.find('o')|s.find('zz')|s.rfind('o')|s.count('l')|'hello wORLD'.title()|'hELLO'.capitalize()|', '.join(['a', 'b'])|'{} {}'.format(1, 'a')|'{0}{1}{0}'.format('a', 'b')|'{x}'.format(x=3)|lines.splitlines()|'%s-%d' % ('a', 3)|'%.2f' % 3.14159|'%05d' % 42|'%s' % n|'abc'.removeprefix('a')|u.find('度')|'12'.isdigit()|l.index(2)|l.count(1)
s | upper|s | lower|'hello world' | title|'hello-world (x)' | title|s | capitalize|sp | trim|'xax' | trim('x')|s | length|l | count|d | length|s | replace('l', 'L')|q | default('dd')|e | default('dd')|e | default('dd', true)|n | d('x')|l | first|l | last|e | first|l | join|l | join(', ')|m | join('+', attribute='role')|l | sort|l | sort(reverse=true)|w | sort|w | sort(case_sensitive=true)|m | sort(attribute='n') | map(attribute='n') | list|l | reverse | list|s | reverse|l | sum|m | sum(attribute='n')|l | min|l | max|w | max|[1, 1, 2] | unique | list|['a', 'A', 'b'] | unique | list|s | list|m | map(attribute='content') | list|m | map(attribute='q', default='-') | list|w | map('upper') | list|w | map('upper') | join(',')|m | selectattr('role', 'equalto', 'user') | list | length|m | rejectattr('role', 'eq', 'user') | map(attribute='content') | first|m | selectattr('n') | list | length|l | select('odd') | list|l | reject('odd') | list|[0, 1, '', 'x'] | select | list|l | select('gt', 1) | list|l | select('>', 1) | list|d | dictsort | length|{'b': 2, 'a': 1} | dictsort|{'b': 1, 'a': 2} | dictsort(by='value')|{'b': 1} | items | list|'42' | int|'x' | int|'x' | int(5)|'3.9' | int|3.9 | int|'ff' | int(base=16)|' 12 ' | int|'1.5' | float|'x' | float|3 | float|n | int|-3 | abs|(-3) | abs|3.567 | round|3.567 | round(2)|2.5 | round|3.2 | round(method='ceil')|3.7 | round(0, 'floor')|5 | round|42 | string|n | string|'<a href="x">&' | e|'<' | safe|lines | indent|lines | indent(2, true)|lines | indent(2, blank=true)|lines | indent('> ')|'a b  c' | wordcount|[1, 2, 3] | batch(2) | list|'%s=%s' | format('a', 1)
d | tojson|u | tojson|'a"b\\c\n</x>' | tojson|d | tojson(indent=2)|l | tojson(indent=1)|[] | tojson(indent=2)|{} | tojson|1.0 | tojson|n | tojson|t | tojson|{'b': 1, 'a': 2} | tojson(sort_keys=true)|u | tojson(ensure_ascii=true)|l | tojson(separators=(',', ':'))|{1: 2, none: 3} | tojson|(1, 2) | tojson|js | from_json|(js | from_json).k[1]|'é\u007f\u2028' | tojson
s is string|n is none|n is not none|q is defined|q is undefined|q is not defined|d is mapping|l is sequence|s is sequence|s is iterable|i is iterable|i is number|f is number|t is number|i is integer|t is integer|f is float|t is boolean|t is true|z is false|e is false|i is odd|i is even|i is divisibleby 7|i is divisibleby(2)|i is eq 7|s is equalto 'x'|2 is in l|i is gt 3|i is lt(3)|i is ge 7|s is upper|'ABC' is upper|n is sameas none|not q is defined|''.__class__|''.__class__ is defined|d.__init__|q is defined and q|range is callable|l is mapping|i is ne 7
[1, 'a', none, true, 1.5, [2], {'k': (1,)}]|{'a': 1, 2: 'b'}|(1,)|()|(1, 2)|[]|{}|'it\'s' | list | first|["it's"]|['a"b\'c']|['\n\t\\é\u200b']|n|t|1.0|1e100|q|q ~ 'x'|[q is defined]
range(3) | list|range(1, 7, 2) | list|range(5, 0, -2) | list|range(0) | length|dict(a=1, b='x')|namespace(a=1).a|dict(a=1).a|q | length|q | list|q | join|q == q2|1 in q
l | map('string') | join('-')|(l | length) - 1|l | length - 1|s | lower | replace('o', '0') | upper|-1 | abs|'a' if s is string else 'b'|'x' ~ (1 if t else 2) ~ 'y'|not s in [1]|i * -1|- i|+ i|[[1, 2], [3]] | map('length') | list|m | map(attribute='role') | unique | list | length
"""

ERRORS = r"""
'a' + n|'a' + 1|n + 'a'|1 + 'a'|q + 'a'|q.x|q['x']|d.nope.x|q()|s()|1 / 0|1 % 0|l < 3|n < 1|'a' < 1|1 in 'a'|1 in n|n | length|i | length|1 +|(1|[1|{'a'|'abc|l | nofilter|l is notest|q | tojson|raise_exception('no')|''.__class__.__mro__|l.__len__()|m.__class__.__base__.__subclasses__()|range(1000000)|{[1]: 2}|'x' | replace('a')|s.split('')|range(1, 2, 0)|'%d' % 'x'|'%s %s' % 'x'|l.index(9)|'a' - 'b'|-s|s.nope()|dict(1)|s[0:1:0]|namespace(1)|js | from_json | nofilter|'{' | from_json|[1, 'a'] | sort|l | batch|1 if|a b|1 2
"""

TEMPLATES = [
    # white space control
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}\n  b\n  {% endif %}\nc", "a\n  {%- if t %}\n  b\n  {%- endif %}\nc",
    "a {%- if t -%} b {%- endif -%} c", "a\n  {%+ if t %}\n  b\n  {%+ endif %}\nc", "{% if t +%}\nb\n{% endif +%}\nc",
    "a  {{ 1 }}  \n  {{- 2 -}}  \n b", "  {{ 1 }}\n", "{# c #}\na", "  {# c #}  \na", "a {#- c -#} b", "a\n {#+ c +#}\nb",
    "{{ 1 }}\n\n", "{{ 1 }}\n\n\n", "\n{{ 1 }}", "a\r\nb\r{% if t %}\r\nc{% endif %}", "x {% if t %} y {% endif %} z",
    "  {% if t %}\n\n\n{% endif %}  \nq", "{% if t %}a{% endif %}\n  {% if t %}b{% endif %}", "{% set a = 1 %}  {% set b = 2 %}\n{{ a }}{{ b }}",
    "\n\n  {%- if t %} x {%- endif %}\n\n", "{{ 1 -}}\n\n  {{- 2 }}", "a\u00a0{%- if t %}b{% endif %}", "{%if t%}a{%endif%}", "{%-if t-%} a {%-endif-%}",
    "{% raw %}{{ x }}{% if %}{% endraw %}y", "a {%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}\n{{ x }}\n{% endraw %}\nz",
    "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {}} }}", "{ {{ 1 }} }", "{{-1}}", "{{ -1 }}", "#{ }# { { % }",
    # set, namespace, block set
    "{% set x = 1 %}{{ x }}", "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set x = 1, 2 %}{{ x }}", "{% set ns = namespace(x=1, y='a') %}{% set ns.x = ns.x + 1 %}{{ ns.x }}{{ ns.y }}",
    "{% set x %}hello {{ i }}{% endset %}[{{ x }}]", "{% set x | upper | replace('H', 'J') %}hi{% endset %}{{ x }}", "{% set x = 1 %}{% for a in l %}{% set x = a %}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% set ns = namespace() %}{{ ns.q is defined }}{% set ns.q = 1 %}{{ ns.q }}", "{% set x = 1 %}{% for a in l %}{{ x }}{% set x = x + a %}{{ x }};{% endfor %}",
    "{% set d2 = {'a': 1} %}{{ d2.a }}", "{% set x = 5 if t else 6 %}{{ x }}", "{% set x %}{% set y = 3 %}{{ y }}{% endset %}{{ x }}{{ y }}",
    # if
    "{% if e %}a{% elif z %}b{% elif i %}c{% else %}d{% endif %}", "{% if e %}a{% else %}d{% endif %}", "{% if q %}a{% endif %}", "{% if l and not e %}a{% endif %}", "{% if [] %}a{% elif {} %}b{% else %}c{% endif %}", "{% if n is none and (i > 3 or f) %}y{% endif %}",
    # for
    "{% for x in l %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in l %}a{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}", "{% for x in l if x > 9 %}a{% else %}no{% endfor %}", "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for c in 'aé温' %}[{{ c }}]{% endfor %}", "{% for x in q %}a{% else %}empty{% endfor %}", "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ x * y }}{% if y == 1 %}{% break %}{% endif %}{% endfor %};{{ loop.index }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l | sort %}{{ x }}{% endfor %}", "{% for x in l[::-1] %}{{ x }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in m if x.role == 'user' %}{{ x.content }}{{ loop.length }}{% endfor %}", "{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}", "{% for loop2 in l %}{{ loop.index0 }}{% endfor %}{{ loop is defined }}", "{% for x in l %}\n- {{ x }}\n{% endfor %}\nend", "{%- for x in l %}\n{{ x }}\n{%- endfor %}",
    "{% for x in (l if t else []) %}{{ x }}{% endfor %}", "{% for k, v in d | dictsort %}{{ k }}{% endfor %}", "{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    # macro
    "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=5, a=4) }}", "{% macro f(a) %}[{{ a }}]{% endmacro %}{{ f() }}", "{% macro f() %}{{ i }}{% set x = 1 %}{% endmacro %}{{ f() }}{{ x is defined }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro f(x) %}\n  <{{ x }}>\n{% endmacro %}\n{{ f('a') }}\n{{ f('b') | trim }}", "{% macro f(x, y=x) %}{{ y }}{% endmacro %}{{ f(3) }}", "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f('x') ~ f('y') }}{{ f(1) | length }}", "{% macro f(a=[]) %}{{ a | length }}{% endmacro %}{{ f() }}{{ f([1]) }}",
    "{% macro a() %}1{{ b() }}{% endmacro %}{% macro b() %}2{% endmacro %}{{ a() }}",
    # with, filter, generation
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set z2 = 1 %}{{ z2 }}{% endwith %}{{ z2 is defined }}", "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aaa{% endfilter %}",
    "{{ 1, 2 }}", "{{ not true }}", "{{ '' }}{{ none }}{{ q }}", "{{ (1 if e) }}", "{{ s if s is string }}", "{{ d.a | tojson }}", "{{ m[1:] | tojson }}", "{{ [1,2,3,] }}{{ {'a':1,} }}",
]

BAD_TEMPLATES = [
    "{% if t %}", "{% endif %}", "{% for x in l %}", "{% for x %}{% endfor %}", "{% if %}{% endif %}", "{{ }}", "{{ 1", "{% set %}", "{% set x = %}", "{# abc", "{% raw %}abc", "{% nope %}", "{% break %}", "{% macro f( %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}",
    "{% include 'x' %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for x in n %}{% endfor %}", "{% for x in i %}{% endfor %}", "{% set d.x = 1 %}", "{% set true = 1 %}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
    "{% if t %}{% else %}{% else %}{% endif %}", "{% for x in l %}{{ x }}{% endif %}", "{{ raise_exception('stop ' ~ i) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% set ns = namespace() %}{{ ns.x.y }}", "{{ loop.index }}", "{{ 'a' }} }} {% if %}", "{% import 'os' as os %}", "{% set a, b = 1 %}", "{{ (1, 2 }}", "{{ 1 | }}", "{{ a. }}", "{{ l[ }}", "{{ l[1:2:3:4] }}",
]


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    return env


def split(lines):
    """Expressions are separated by | without blanks around it; a filter's bar has blanks."""
    for line in lines.strip().split("\n"):
        part = ""
        for i, c in enumerate(line):
            if c == "|" and not (line[i - 1] == " " and line[i + 1:i + 2] == " "):
                yield part
                part = ""
            else:
                part += c
        yield part


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default=os.path.join(here, "..", "tests", "data", "chat", "jinja_cases.jsonl"))
    a = ap.parse_args()
    env = environment()
    texts = ["{{ " + x + " }}" for x in split(EXPRESSIONS)] + TEMPLATES
    wrong = ["{{ " + x + " }}" for x in split(ERRORS)] + BAD_TEMPLATES
    with open(a.out, "w", encoding="ascii") as f:
        f.write(json.dumps({"vars": VARS}) + "\n")
        for text in texts + wrong:
            row = {"template": text}
            try:
                row["rendered"] = env.from_string(text).render(**json.loads(json.dumps(VARS)))
            except Exception as e:                          # noqa: BLE001 - the failure is the expectation
                row["rendered"], row["error"] = None, type(e).__name__
            if (row["rendered"] is None) != (text in wrong):
                print("unexpected:", text, row)
            if "object at 0x" in (row["rendered"] or ""):
                print("not reproducible:", text)
            f.write(json.dumps(row) + "\n")
    print(len(texts), "templates,", len(wrong), "failures; jinja2", jinja2.__version__)


if __name__ == "__main__":
    main()
