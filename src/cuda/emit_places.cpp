#include "cuda/emit_places.h"

#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;

namespace {

// Returns the part of a read's address that a place keeps; "" for none.
std::string offset_part(const Body& body, NodeId read, Place place) {
    if (place == Place::head) return "flexc_kept(" + body.base(read) + ")";
    if (place != Place::row && place != Place::column) return "";
    return body.offset_part(read, passes::ArgumentSlot::Kind::buffer_stride, place);
}

// Returns the body of the function that computes a place's values and returns them.
Body place_body(const SymbolTable& symbols, Place place, std::string access, bool reads_if_used) {
    Body body(symbols, place, std::move(access));
    if (reads_if_used) body.read_if_used();
    const std::vector<NodeId>& kept = symbols.kept(place);
    body.compute(kept);
    std::string fields;
    for (const NodeId id : kept)
        fields += (fields.empty() ? "" : ", ") + body.text_as(id, symbols.type(id));
    for (const NodeId divisor : symbols.divisors(place))
        fields += formatted("{}flexc_reciprocal({})", fields.empty() ? "" : ", ",
                            unbracketed(body.text(divisor)));
    for (const NodeId read : symbols.narrow_reads())
        if (const std::string part = offset_part(body, read, place); !part.empty())
            fields += (fields.empty() ? "" : ", ") + part;
    body.line("return {" + fields + "};");
    return body;
}

std::string place_function(const SymbolTable& symbols, Place place, std::string_view type,
                           std::string_view name, std::string_view parameters, int most_inlined,
                           int most_with_unused_reads) {
    const Body body = place_body(symbols, place, "", false);
    const bool reads_if_used = body.reads() > 1 && body.instructions() > most_with_unused_reads;
    if (body.instructions() > most_inlined)
        return called_place_function(type, name, parameters,
                                     place_body(symbols, place, "at.", reads_if_used));
    return device_function(formatted("{} {}({})", type, name, parameters),
                           reads_if_used ? place_body(symbols, place, "", true) : body);
}

} // namespace

std::string emit_place_structs(const SymbolTable& symbols) {
    const ir::Program& program = symbols.mod().program;
    std::string text;
    for (const Place place : {Place::launch, Place::head, Place::row, Place::column}) {
        std::string title(passes::name(place));
        title[0] = static_cast<char>(title[0] - 'a' + 'A');
        text += "struct " + title + " {\n";
        for (const NodeId id : symbols.kept(place))
            text += formatted("    {} {};\n", spelling(symbols.type(id)), value_name(program, id));
        for (const NodeId divisor : symbols.divisors(place))
            text += formatted("    float {};\n", reciprocal_name(divisor));
        for (const NodeId read : symbols.narrow_reads())
            if (place == Place::head)
                text += formatted("    const {}* base_{};\n",
                                  element_type(program.buffer_of(read).dtype), read);
            else if (!offset_part(Body(symbols, place, ""), read, place).empty())
                text += formatted("    int offset_{};\n", read);
        text += "};\n";
    }
    return text;
}

std::string emit_place_functions(const SymbolTable& symbols, MostInlined most) {
    const std::string launch = "const Arguments& arguments, const Launch& launch";
    const std::string head = "int b, int h, int h_kv";
    const std::string position = launch + ", const Head& head, " + head;
    const auto function = [&](Place place, std::string_view type, std::string_view name,
                              const std::string& parameters) {
        const int most_inlined = place == Place::row      ? most.row
                                 : place == Place::column ? most.column
                                                          : std::numeric_limits<int>::max();
        return place_function(symbols, place, type, name, parameters, most_inlined,
                              most.with_unused_reads);
    };
    return function(Place::launch, "Launch", "at_launch", "const Arguments& arguments") +
           function(Place::head, "Head", "at_head", launch + ", " + head) +
           function(Place::row, "Row", "at_row", position + ", int q") +
           function(Place::column, "Column", "at_column", position + ", int kv");
}

} // namespace flexc::cuda
