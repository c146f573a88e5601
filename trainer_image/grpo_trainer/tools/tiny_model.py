"""A tiny random model of the same family as another one, with its tokenizer: for tests that need speed, not skill.

Usage: tiny_model.py SOURCE_MODEL OUTPUT_DIRECTORY
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def make(source: str, output: str) -> None:
    config = AutoConfig.from_pretrained(source)
    config.hidden_size, config.intermediate_size = 64, 128
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 2, 2, 1
    config.head_dim = 32
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).float().save_pretrained(output)
    AutoTokenizer.from_pretrained(source).save_pretrained(output)


if __name__ == "__main__":
    make(*sys.argv[1:])
