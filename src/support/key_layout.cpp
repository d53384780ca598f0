#include "support/key_layout.h"

#include <algorithm>
#include <array>

namespace flexc::support {

namespace {

constexpr std::array kDense = {KeyAxis::entry, KeyAxis::head, KeyAxis::row, KeyAxis::column};
constexpr std::array kRagged = {KeyAxis::row, KeyAxis::head, KeyAxis::column};
constexpr std::array kRowsFirst = {KeyAxis::entry, KeyAxis::row, KeyAxis::head, KeyAxis::column};

constexpr std::array<KeyLayout, 3> kLayouts = {{{.layout = Layout::dense,
                                                 .name = "dense",
                                                 .axes = kDense,
                                                 .dims = "[B, H_KV, KV_LEN, D]",
                                                 .is_in_order = true,
                                                 .starts_at_end = false},
                                                {.layout = Layout::ragged,
                                                 .name = "ragged",
                                                 .axes = kRagged,
                                                 .dims = "[TOTAL_K, H_KV, D]",
                                                 .is_in_order = true,
                                                 .starts_at_end = false},
                                                {.layout = Layout::paged,
                                                 .name = "paged",
                                                 .axes = kRowsFirst,
                                                 .dims = "[PAGES, PAGE_SIZE, H_KV, D]",
                                                 .is_in_order = false,
                                                 .starts_at_end = true,
                                                 .things = "pages",
                                                 .why_scattered = "keys lie in pages",
                                                 .row_count = "page_size",
                                                 .device_class = "KeysInPages",
                                                 .device_header = "keys/in_pages.h"}}};

} // namespace

int KeyLayout::axis(KeyAxis wanted) const {
    const auto found = std::ranges::find(axes, wanted);
    return found == axes.end() ? -1 : static_cast<int>(found - axes.begin());
}

std::span<const KeyLayout> key_layouts() { return kLayouts; }
const KeyLayout& key_layout(Layout layout) { return kLayouts[static_cast<std::size_t>(layout)]; }

} // namespace flexc::support

namespace flexc {

std::string_view name(Layout layout) { return support::key_layout(layout).name; }

} // namespace flexc
