// Checking a GBNF grammar before llama.cpp sees it: its own parser reports errors on stderr only.
#include "bounded.h"
#include "handles.h"

#include "llama-grammar.h"

#include <cstdio>
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

// The end of a literal or character class that begins at p; escapes may hide its last character.
const char * skip_quoted(const char * p, char last) {
    for (p++; *p && *p != last; p++) {
        if (*p == '\\' && p[1]) {
            p++;
        }
    }
    return *p ? p + 1 : p;
}

// The parser counts from m up to n in "{m,n}" without asking which is larger.
int32_t check_repetitions(const char * text) {
    for (const char * p = text; *p;) {
        if (*p == '"' || *p == '[') {
            p = skip_quoted(p, *p == '"' ? '"' : ']');
        } else if (*p == '#') {
            p = skip_space(p);
        } else if (*p++ == '{') {
            unsigned long long least = 0;
            unsigned long long most = 0;
            if (sscanf(p, " %19llu , %19llu", &least, &most) == 2 && most < least) {
                return turbo_fail(TURBO_E_ARGUMENT, "grammar: {%llu,%llu} asks for more repetitions than it allows", least,
                                  most);
            }
        }
    }
    return TURBO_OK;
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
    const int32_t status = check_repetitions(rule);
    if (status != TURBO_OK) {
        return status;
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
