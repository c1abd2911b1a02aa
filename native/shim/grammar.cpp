// Checking a GBNF grammar before llama.cpp sees it: its own parser reports errors on stderr only.
#include "bounded.h"
#include "handles.h"

#include "llama-grammar.h"

#include <cstring>
#include <exception>
#include <string>

namespace {

// Blank space and comments in front of the first rule; the parser itself skips those behind each rule.
const char * skip_space(const char * p) {
    while (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n' || *p == '#') {
        if (*p == '#') {
            while (*p && *p != '\n') {
                p++;
            }
        } else {
            p++;
        }
    }
    return p;
}

int32_t check_references(const llama_grammar_parser & parser) {
    for (const auto & [name, id] : parser.symbol_ids) {
        if (id >= parser.rules.size() || parser.rules[id].empty()) {
            return turbo_fail(TURBO_E_ARGUMENT, "grammar: rule '%s' is used but not defined", name.c_str());
        }
    }
    if (parser.symbol_ids.count("root") == 0) {
        return turbo_fail(TURBO_E_ARGUMENT, "grammar: there is no rule 'root'");
    }
    return TURBO_OK;
}

int32_t check(const turbo_model & model, const char * text) {
    const char * rule = skip_space(text);
    if (!*rule) {
        return turbo_fail(TURBO_E_ARGUMENT, "the grammar is empty: it would constrain nothing");
    }
    llama_grammar_parser parser(model.vocab);
    try {
        while (*rule) {
            rule = parser.parse_rule(rule);
        }
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        return turbo_fail(TURBO_E_ARGUMENT, "grammar: %.200s", error.what());
    }
    return check_references(parser);
}

}  // namespace

int32_t turbo_check_grammar(const turbo_model & model, const char * text) {
    return turbo_bounded("the grammar", turbo_text_budget(strlen(text)), [&] { return check(model, text); });
}
