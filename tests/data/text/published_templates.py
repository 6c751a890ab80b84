"""Chat templates that do what those of published models do, and conversations for them."""

CHATML = """\
{%- if messages[0].role != 'system' -%}
<|im_start|>system\nYou are helpful.<|im_end|>\n
{%- endif -%}
{%- for turn in messages -%}
{{ '<|im_start|>' + turn.role + '\n' + turn.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
# Qwen3: thoughts are in the last answer alone, which has empty ones where it has none.
THINKING = """\
{%- for turn in messages -%}
{{ '<|im_start|>' + turn.role + '\n' }}
{%- if turn.role != 'assistant' -%}{{ turn.content }}
{%- else -%}
{%- set thoughts = turn.reasoning_content if turn.reasoning_content is string else '' -%}
{%- set answer = turn.content -%}
{%- if not turn.reasoning_content is string and '</think>' in answer -%}
{%- set thoughts = answer.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set answer = answer.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{%- if loop.last -%}{{ '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' }}{%- endif -%}
{{ answer.lstrip('\n') }}
{%- endif -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
LLAMA3 = """\
{%- for turn in messages -%}
{%- set text = '<|start_header_id|>' + turn.role + '<|end_header_id|>\n\n' + turn.content | trim + '<|eot_id|>' -%}
{%- if loop.first %}{% set text = bos_token + text %}{% endif -%}
{{ text }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif -%}
"""
GEMMA = """\
{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{%- for turn in messages -%}
{%- if (turn.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif -%}
{{ '<start_of_turn>' + ('model' if turn.role == 'assistant' else turn.role) + '\n' }}
{%- if turn.content is string -%}{{ turn.content | trim }}
{%- else -%}{%- for part in turn.content -%}
{%- if part.type == 'image' %}{{ '<start_of_image>' }}{% elif part.type == 'text' %}{{ part.text | trim }}{% endif -%}
{%- endfor -%}{%- endif -%}
{{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif -%}
"""
MISTRAL = """\
{{ bos_token }}
{%- for turn in messages -%}
{%- if turn.role == 'user' -%}{{ '[INST] ' + turn.content + ' [/INST]' }}
{%- elif turn.role == 'assistant' -%}{{ ' ' + turn.content + eos_token }}
{%- else -%}{{ raise_exception('Only user and assistant roles are supported!') }}
{%- endif -%}
{%- endfor -%}
"""
MARKED = """\
{%- for turn in messages -%}
{%- if turn.role == 'assistant' -%}
<|im_start|>assistant\n{% generation %}{{ turn.content + '<|im_end|>\n' }}{% endgeneration %}
{%- else -%}
{{ '<|im_start|>' + turn.role + '\n' + turn.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""
# LLaVA's: images first, each with a line break.
IMAGES_FIRST = """\
{%- for turn in messages -%}
{{ turn.role | upper + ': ' }}
{%- for part in turn.content | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor -%}
{%- for part in turn.content | selectattr('type', 'equalto', 'text') -%}
{%- if turn.role == 'assistant' %}{% generation %}{{ part.text }}{% endgeneration %}
{%- else -%}{{ part.text }}{% endif -%}
{%- endfor -%}
{{ eos_token if turn.role == 'assistant' else ' ' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif -%}
"""
QWEN_VL = """\
{%- for turn in messages -%}
{{ '<|im_start|>' + turn.role + '\n' }}
{%- if turn.content is string -%}{{ turn.content }}
{%- else -%}{%- for part in turn.content -%}
{%- if part.type == 'image' %}{{ '<img><image></img>' }}{% elif part.type == 'text' %}{{ part.text }}{% endif -%}
{%- endfor -%}{%- endif -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""

TEXT_TEMPLATES = {
    "chatml": CHATML,
    "thinking": THINKING,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "marked": MARKED,
    "qwen_vl": QWEN_VL,
}
