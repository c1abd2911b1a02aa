from llama_cpp import Llama, LlamaRAMCache

llm = Llama(model_path="./models/model.gguf", n_ctx=512, seed=1337)
llm.set_cache(LlamaRAMCache(capacity_bytes=1 << 28))
first = llm.create_completion("A story about a dog. ", max_tokens=8, temperature=0.0)
llm.create_completion("Something else entirely. ", max_tokens=8, temperature=0.0)
again = llm.create_completion("A story about a dog. ", max_tokens=8, temperature=0.0)
print(first["choices"][0]["text"] == again["choices"][0]["text"])

llm.set_cache(None)
llm.reset()
llm.eval(llm.tokenize(b"remember this"))
state = llm.save_state()
one = llm.sample(temp=0.0)
llm.eval([one])
llm.load_state(state)
print(state.n_tokens == llm.n_tokens)
