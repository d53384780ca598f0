#include "front/reporter.h"

#include <algorithm>

namespace flexc::front {

namespace {
constexpr std::size_t kMaxErrors = 20, kMaxWarnings = 20;
constexpr std::size_t kMaxNotes = 4;
} // namespace

void Reporter::push_call(dsl::Span span, std::string function) {
    calls_.push_back({place_.source, place_.in_library ? place_.call : span, std::move(function)});
}

void Reporter::error(dsl::Span span, std::string message, std::string hint,
                     std::vector<dsl::Note> notes) {
    report({.severity = dsl::Severity::error,
            .span = span,
            .message = std::move(message),
            .hint = std::move(hint),
            .notes = std::move(notes)});
}

void Reporter::warning(dsl::Span span, std::string message, std::string hint) {
    report({.severity = dsl::Severity::warning,
            .span = span,
            .message = std::move(message),
            .hint = std::move(hint)});
}

void Reporter::add(const dsl::Diagnostics& diagnostics) {
    for (const dsl::Diagnostic& diagnostic : diagnostics)
        report(diagnostic);
}

void Reporter::report(dsl::Diagnostic diagnostic) {
    if (place_.in_library) {
        diagnostic.span = place_.call;
        diagnostic.message = "in library function '" + place_.function + "': " + diagnostic.message;
        diagnostic.notes.clear();
    }
    for (std::size_t i = calls_.size(); i-- > 0 && diagnostic.notes.size() < kMaxNotes;)
        if (calls_[i].source == place_.source && !place_.in_library && calls_[i].span.end > 0)
            diagnostic.notes.push_back(
                {calls_[i].span, "in this call of '" + calls_[i].function + "'"});
    const bool known = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.source == place_.source &&
               entry.diagnostic.span.begin == diagnostic.span.begin &&
               entry.diagnostic.span.end == diagnostic.span.end &&
               entry.diagnostic.message == diagnostic.message;
    });
    if (known) return;
    // Each kind has room of its own: a program that is refused always shows why.
    const bool is_error = diagnostic.severity == dsl::Severity::error;
    if (is_error ? ++errors_ > kMaxErrors : ++warnings_ > kMaxWarnings) return;
    entries_.push_back({place_.source, std::move(diagnostic)});
}

bool Reporter::full() const { return errors_ >= kMaxErrors; }

bool Reporter::has_error_at(dsl::Span span) const {
    if (place_.in_library) span = place_.call;
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.source == place_.source && entry.diagnostic.severity == dsl::Severity::error &&
               entry.diagnostic.span.begin == span.begin && entry.diagnostic.span.end == span.end;
    });
}

dsl::Span Reporter::node_span(dsl::Span span) const {
    if (place_.source != program_) return {};
    return place_.in_library ? place_.call : span;
}

std::vector<const Reporter::Entry*> Reporter::sorted() const {
    std::vector<const Entry*> order;
    order.reserve(entries_.size());
    for (const Entry& entry : entries_)
        order.push_back(&entry);
    std::stable_sort(order.begin(), order.end(), [&](const Entry* a, const Entry* b) {
        if (a->source != b->source) return a->source == program_ && b->source != program_;
        return a->diagnostic.span.begin < b->diagnostic.span.begin;
    });
    return order;
}

dsl::Diagnostics Reporter::diagnostics() const {
    dsl::Diagnostics all;
    for (const Entry* entry : sorted())
        all.push_back(entry->diagnostic);
    return all;
}

std::string Reporter::render() const {
    std::string out;
    for (const Entry* entry : sorted())
        out += dsl::render(*entry->source, entry->diagnostic);
    return out;
}

} // namespace flexc::front
