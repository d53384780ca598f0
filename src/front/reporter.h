// Collects what is wrong. Text may come from the program, the mask_mod option or the library; what
// is wrong inside a library function is reported at the call in the user's text.
#pragma once

#include <string>
#include <vector>

#include "dsl/diagnostic.h"
#include "dsl/source.h"

namespace flexc::front {

class Reporter {
  public:
    // The source to which the current spans belong.
    struct Place {
        const dsl::Source* source = nullptr;
        bool in_library = false;
        dsl::Span call;       // the user's call of the library function
        std::string function; // its name
    };

    explicit Reporter(const dsl::Source& program) : program_(&program) { place_.source = &program; }

    const Place& place() const { return place_; }
    void set_place(Place place) { place_ = std::move(place); }

    // Calls of the user's own functions that lead here: shown as notes.
    void push_call(dsl::Span span, std::string function);
    void pop_call() { calls_.pop_back(); }

    void error(dsl::Span span, std::string message, std::string hint = {},
               std::vector<dsl::Note> notes = {});
    void warning(dsl::Span span, std::string message, std::string hint = {});
    void add(const dsl::Diagnostics& diagnostics); // of the current place

    // The span that an IR node keeps: places in the program's own text only.
    dsl::Span node_span(dsl::Span span) const;

    // Further errors are not kept: no need to look for a hint.
    bool full() const;
    // An error at this span of the current place has been reported already, from another copy of a
    // function: no need to look for a hint again.
    bool has_error_at(dsl::Span span) const;
    bool failed() const { return errors_ > 0; }
    std::size_t errors() const { return errors_; }
    // Sorted by place, each once.
    dsl::Diagnostics diagnostics() const;
    std::string render() const;

  private:
    struct Entry {
        const dsl::Source* source;
        dsl::Diagnostic diagnostic;
    };
    struct Call {
        const dsl::Source* source;
        dsl::Span span;
        std::string function;
    };
    void report(dsl::Diagnostic diagnostic);
    std::vector<const Entry*> sorted() const;

    const dsl::Source* program_;
    Place place_;
    std::vector<Call> calls_;
    std::vector<Entry> entries_;
    std::size_t errors_ = 0, warnings_ = 0;
};

} // namespace flexc::front
