// The table of all layouts that keys and values may have. In addition, each layout has a class in
// templates/keys, for kernels and the CPU, and a reader of the caller's arrays in src/runtime/keys.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "flexc/options.h"

namespace flexc::support {

enum class KeyAxis : std::uint8_t { entry, head, row, column };

struct KeyLayout {
    Layout layout;
    std::string_view name;
    std::span<const KeyAxis> axes; // of k and v, outermost first
    std::string_view dims;         // of k, as text for messages
    // Whether the keys of a batch entry are contiguous; then queries can have this layout too.
    // Otherwise each key is looked up, and there is no backward.
    bool is_in_order;
    bool starts_at_end; // QueryStart::automatic is QueryStart::end; otherwise zero
    // Only if keys are not in order: what contains the keys, why TMA and a backward cannot read
    // them, and the caller's name for the number of rows of an entry.
    std::string_view things = {}, why_scattered = {}, row_count = {};
    std::string_view device_class = {}, device_header = {}; // class and file in templates
    int axis(KeyAxis wanted) const;                         // index in axes; negative if absent
};

std::span<const KeyLayout> key_layouts(); // in the order of Layout
const KeyLayout& key_layout(Layout layout);

} // namespace flexc::support
