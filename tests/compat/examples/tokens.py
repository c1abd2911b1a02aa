from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", n_ctx=256)
tokens = llm.tokenize(b"the sea and the land")
print(tokens[0] == llm.token_bos(), llm.detokenize(tokens))

for count, token in enumerate(llm.generate(tokens, top_k=40, top_p=0.95, temp=1.0, repeat_penalty=1.1)):
    if token == llm.token_eos() or count == 10:
        break
    print(llm.detokenize([token]).decode("utf-8", errors="ignore"), end="")
print()

llm.reset()
llm.eval(tokens)
token = llm.sample(temp=0.0)
llm.eval([token])
print(llm.n_tokens == len(tokens) + 1, 0 <= token < llm.n_vocab())
