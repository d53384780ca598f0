#include "flexc/picture.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "flexc/attention_call.h"
#include "flexc/fill.h"
#include "flexc/mod_option.h"

namespace flexc::cli {
namespace {

constexpr int kSide = 32;

using Words = std::map<std::string, std::string>;

// "# Example: Q_LEN=8 window=3" to its parts.
Words example_of(const std::string& text) {
    constexpr std::string_view kStart = "\n# Example: ";
    Words words;
    const auto start = text.find(kStart);
    if (start == std::string::npos) {
        return words;
    }
    const auto begin = start + kStart.size();
    std::istringstream line(text.substr(begin, text.find('\n', begin) - begin));
    for (std::string word; line >> word;) {
        words.insert(split_assignment(word, "Example"));
    }
    return words;
}

std::int64_t count_in(const Words& example, const std::string& name, int otherwise) {
    const auto found = example.find(name);
    return found == example.end() ? otherwise : parse_count(found->second, name);
}

ProblemShape shape_of(const Words& example) {
    ProblemShape shape{.head_dim = 1, .dtype = DType::f32};
    shape.sizes = {.batch = 1,
                   .heads = count_in(example, "H", 1),
                   .kv_heads = 1,
                   .q_len = count_in(example, "Q_LEN", kSide),
                   .kv_len = count_in(example, "KV_LEN", kSide)};
    // v is the identity, so that an output row is the row of weights.
    shape.head_dim_v = static_cast<int>(shape.sizes.kv_len);
    return shape;
}

std::vector<std::byte> identity(std::int64_t side) {
    const auto count = static_cast<std::size_t>(side);
    std::vector<float> values(count * count);
    for (std::size_t i = 0; i < count; ++i) {
        values[i * count + i] = 1;
    }
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

void add_buffers(AttentionCall& call, const Signature& signature, const Words& example) {
    auto sizes = size_names(call.shape());
    for (const auto& [name, value] : example) {
        if (value.find_first_not_of("0123456789") == std::string::npos) {
            sizes.emplace(name, std::stoll(value));
        }
    }
    std::uint64_t seed = 0;
    for (const auto& info : signature.buffers) {
        const auto given = example.find(info.name);
        const auto spec = parse_fill(given == example.end() ? default_fill(info) : given->second);
        const auto extents = buffer_shape(info, sizes);
        call.add_buffer(info, extents, make_contents(spec, info.dtype, extents, ++seed));
    }
}

CallOptions call_options(const Signature& signature, const Words& example) {
    CallOptions options;
    for (const auto& param : signature.params) {
        if (const auto given = example.find(param.name); given != example.end()) {
            options.params.emplace_back(param.name, parse_number(given->second, param.name));
        }
    }
    return options;
}

char shade(float weight, float largest) {
    if (weight == 0) {
        return '.';
    }
    const float part = weight / largest;
    return part > 0.75F ? '#' : part > 0.5F ? '*' : part > 0.25F ? '+' : '-';
}

std::vector<std::string> draw(const DeviceTensor& output, const ProblemShape& shape) {
    std::vector<float> weights(static_cast<std::size_t>(output.view.elements()));
    if (!output.memory.download(weights.data(), weights.size() * sizeof(float))) {
        return {};
    }
    std::vector<std::string> rows;
    const auto width = shape.sizes.kv_len;
    for (std::int64_t q = 0; q < shape.sizes.q_len; ++q) {
        const auto row = weights.begin() + q * width;
        const float largest = *std::max_element(row, row + width);
        std::string& drawn = rows.emplace_back();
        std::transform(row, row + width, std::back_inserter(drawn),
                       [&](float weight) { return shade(weight, largest); });
    }
    return rows;
}

} // namespace

Result<std::vector<std::string>> picture_of(const LibraryEntry& entry) {
    const auto example = example_of(entry.text);
    const auto shape = shape_of(example);
    const CompileOptions options{.dtype = shape.dtype,
                                 .head_dim = shape.head_dim,
                                 .head_dim_v = shape.head_dim_v,
                                 .device = Device::cpu(),
                                 .backward = false};
    const auto signature = check(entry.text, options);
    if (!signature) {
        return signature.error();
    }
    auto kernel = compile(entry.text, options);
    if (!kernel) {
        return kernel.error();
    }
    AttentionCall call(*kernel, shape, call_options(*signature, example));
    call.set("v", identity(shape.sizes.kv_len));
    add_buffers(call, *signature, example);
    call.set("q", {});
    call.set("k", {});
    call.prepare(false);
    if (auto done = call.forward(); !done) {
        return done.error();
    }
    for (const auto& output : call.outputs()) {
        if (output.name == "o") {
            return draw(output, shape);
        }
    }
    return Error{ErrorCode::internal, "the kernel has no output"};
}

} // namespace flexc::cli
