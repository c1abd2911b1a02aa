import math

from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", n_ctx=256, logits_all=True)
output = llm.create_completion("The moon", max_tokens=4, logprobs=3, temperature=0.0)
logprobs = output["choices"][0]["logprobs"]
for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
    print(repr(token), round(math.exp(logprob), 3), len(top) >= 3, max(top.values()) == logprob)
print(logprobs["text_offset"][0] == len("The moon"))
