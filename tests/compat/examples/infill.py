from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", n_ctx=256, spm_infill=True)
output = llm.create_completion(
    prompt="def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))", max_tokens=6, temperature=0
)
print(len(output["choices"][0]["text"]) > 0)
