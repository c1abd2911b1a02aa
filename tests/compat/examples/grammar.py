from llama_cpp import Llama, LlamaGrammar

grammar = LlamaGrammar.from_string('root ::= "(" [0-9] [0-9] ")"', verbose=False)
llm = Llama("./models/model.gguf")
response = llm("Two digits: ", grammar=grammar, max_tokens=-1)
print(response["choices"][0]["text"])

schema = '{"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}'
response = llm("A list: ", grammar=LlamaGrammar.from_json_schema(schema), max_tokens=100)
print(response["choices"][0]["text"])
