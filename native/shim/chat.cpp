// Chat templates, parsing of answers, and JSON schemas, by common's engines. JSON in, JSON out.
#include "bounded.h"
#include "handles.h"
#include "turbo_text.h"

#include "chat.h"
#include "json-schema-to-grammar.h"
#include "json.h"

#include <cstring>
#include <string>

namespace {

constexpr size_t MAX_TEMPLATE_BYTES = 128u << 10;

common_reasoning_format reasoning_format(const common_json & request) {
    return common_reasoning_format_from_name(request.value("reasoning_format", "none"));
}

common_chat_templates_inputs read_inputs(const common_json & request) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (request.contains("tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
        inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
        inputs.parallel_tool_calls = request.value("parallel_tool_calls", false);
    }
    if (request.contains("json_schema")) {
        inputs.json_schema = request.at("json_schema").dump();
    }
    inputs.add_generation_prompt = request.value("add_generation_prompt", true);
    inputs.enable_thinking = request.value("enable_thinking", true);
    inputs.reasoning_format = reasoning_format(request);
    if (request.contains("template_kwargs")) {
        for (const auto & item : request.at("template_kwargs").items()) {
            inputs.chat_template_kwargs[item.key()] = item.value().dump();
        }
    }
    return inputs;
}

common_json write_params(const common_chat_params & params) {
    common_json triggers = common_json::array();
    for (const common_grammar_trigger & trigger : params.grammar_triggers) {
        triggers.push_back({
            { "type", (int) trigger.type },
            { "value", trigger.value },
            { "token", (int) trigger.token },
        });
    }
    return {
        { "prompt", params.prompt },
        { "format", (int) params.format },
        { "format_name", common_chat_format_name(params.format) },
        { "parser", params.parser },
        { "generation_prompt", params.generation_prompt },
        { "grammar", params.grammar },
        { "grammar_lazy", params.grammar_lazy },
        { "triggers", triggers },
        { "stops", params.additional_stops },
        { "supports_thinking", params.supports_thinking },
    };
}

// What the engine's recursion needs is bounded by a template's size and nesting (the longest known has 40 kB).
int32_t check_template(const char * text) {
    const size_t bytes = strlen(text);
    if (bytes > MAX_TEMPLATE_BYTES) {
        return turbo_fail(TURBO_E_ARGUMENT, "the chat template has %zu bytes, at most %zu are possible", bytes,
                          MAX_TEMPLATE_BYTES);
    }
    return turbo_nests_too_deeply(text) ? turbo_fail(TURBO_E_ARGUMENT, "the chat template is nested too deeply") : TURBO_OK;
}

// Bad JSON, a wrong message shape, a template that raises or does not end: the caller's to mend, so an argument error.
template <typename F> int32_t guard_request(const char * what, const char * request, F && f) {
    return turbo_bounded(what, turbo_text_budget(strlen(request)), [&]() -> int32_t {
        try {
            return f();
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & error) {
            return turbo_fail(TURBO_E_ARGUMENT, "%s", error.what());
        }
    });
}

}  // namespace

int32_t turbo_chat_apply(const turbo_model * model, const char * request_text, char ** out) {
    *out = nullptr;
    return guard_request("the chat template", request_text, [&]() -> int32_t {
        const common_json request = common_json::parse(request_text);
        const std::string given = request.value("template", "");
        for (const char * text : { given.c_str(), llama_model_chat_template(model->model, nullptr) }) {
            const int32_t status = text ? check_template(text) : TURBO_OK;
            if (status != TURBO_OK) {
                return status;
            }
        }
        const common_chat_templates_ptr templates = common_chat_templates_init(model->model, given);
        const common_chat_params params = common_chat_templates_apply(templates.get(), read_inputs(request));
        return turbo_give_text(write_params(params).dump_safe(), out);
    });
}

int32_t turbo_chat_parse(const char * request_text, char ** out) {
    *out = nullptr;
    return guard_request("the answer", request_text, [&]() -> int32_t {
        const common_json request = common_json::parse(request_text);
        common_chat_parser_params params;
        const int format = request.at("format").get<int>();
        if (format < 0 || format >= COMMON_CHAT_FORMAT_COUNT) {
            return turbo_fail(TURBO_E_ARGUMENT, "chat format %d of %d", format, (int) COMMON_CHAT_FORMAT_COUNT);
        }
        params.format = (common_chat_format) format;
        params.reasoning_format = reasoning_format(request);
        params.generation_prompt = request.value("generation_prompt", "");
        const std::string parser = request.value("parser", "");
        if (!parser.empty()) {
            params.parser.load(parser);
        }
        const common_chat_msg message =
            common_chat_parse(request.at("text").get<std::string>(), request.value("partial", false), params);
        return turbo_give_text(message.to_json_oaicompat().dump_safe(), out);
    });
}

int32_t turbo_schema_to_grammar(const char * schema, char ** out) {
    *out = nullptr;
    return guard_request("the JSON schema", schema, [&]() -> int32_t {
        if (turbo_nests_too_deeply(schema)) {
            return turbo_fail(TURBO_E_ARGUMENT, "the JSON schema is nested too deeply");
        }
        return turbo_give_text(json_schema_to_grammar(common_json::parse(schema)), out);
    });
}
