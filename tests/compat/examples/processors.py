import numpy as np
from llama_cpp import Llama, LogitsProcessorList, StoppingCriteriaList

llm = Llama(model_path="./models/model.gguf", n_ctx=256)
prompt = llm.tokenize(b"once upon a time")
(favourite,) = llm.tokenize(b"x", add_bos=False)[-1:]


def prefer(input_ids, scores):
    scores = np.copy(scores)
    scores[favourite] += 100.0
    return scores


def long_enough(input_ids, logits):
    return len(input_ids) >= len(prompt) + 5


output = llm.create_completion(
    prompt,
    max_tokens=50,
    logits_processor=LogitsProcessorList([prefer]),
    stopping_criteria=StoppingCriteriaList([long_enough]),
)
print(output["choices"][0]["text"], output["usage"]["completion_tokens"], output["choices"][0]["finish_reason"])
