"""Texts the targets begin with: chat templates of several answer formats, tools, and JSON schemas."""

from __future__ import annotations

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}},
                "required": ["a"],
            },
        },
    }
]

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TOOL_CALLS = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools>"
    'Calls: <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>{% endif %}'
    "{% for m in messages %}[{{ m['role'] | upper }}] {{ m['content'] | trim if m.content is string else '' }}"
    '{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[ASSISTANT]{% endif %}"
)
_THINKING = (
    "{%- set ns = namespace(last=0) -%}{%- for m in messages -%}{%- if loop.index0 > ns.last and m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}<|{{ m.role }}|>{{ m.content }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- if enable_thinking is defined and not enable_thinking -%}"
    "<think>\n\n</think>{%- else -%}<think>\n{%- endif -%}{%- endif -%}"
)
TEMPLATES = (_CHATML, _TOOL_CALLS, _THINKING)

SCHEMAS = (
    '{"type":"object","properties":{"a":{"type":"string","minLength":1,"maxLength":9},"b":{"$ref":"#/$defs/n"}},'
    '"required":["a"],"additionalProperties":false,"$defs":{"n":{"type":"integer","minimum":-5,"maximum":120}}}',
    '{"anyOf":[{"enum":["x",1,null]},{"const":{"k":[true]}},{"type":["array","null"],"items":{"type":"number"},'
    '"minItems":1,"maxItems":3}]}',
    '{"type":"array","prefixItems":[{"type":"string","pattern":"^[a-c]{1,3}(x|\\\\d+)?$"},{"format":"date-time",'
    '"type":"string"}],"allOf":[{"type":"array"}]}',
)
