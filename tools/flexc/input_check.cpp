#include "flexc/input_check.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "flexc/command.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

class Problems {
  public:
    explicit Problems(const TensorFile& file) : file_(file) {}

    template <typename... Arguments>
    void add(std::string_view tensor, fmt::format_string<Arguments...> text,
             Arguments&&... arguments) {
        if (++count_ > kMostLines) return;
        lines_.push_back(formatted("{}: tensor '{}': {}", file_.path(), tensor,
                                   formatted(text, std::forward<Arguments>(arguments)...)));
    }
    void throw_if_any() const {
        if (lines_.empty()) return;
        std::string text = joined(lines_, "\nflexc: error: ");
        if (count_ > kMostLines) {
            text += formatted("\nand {} more of these", count_ - kMostLines);
        }
        fail(text);
    }
    const TensorFile& file() const { return file_; }

  private:
    static constexpr std::size_t kMostLines = 20; // a file may have any number of tensors

    const TensorFile& file_;
    std::vector<std::string> lines_;
    std::size_t count_ = 0;
};

std::string type_and_shape(DType dtype, std::span<const std::int64_t> shape) {
    return formatted("{} {}", name(dtype), describe_shape(shape));
}
std::string type_and_shape(const TensorEntry& entry) {
    return type_and_shape(entry.dtype, entry.shape);
}

void expect(Problems& problems, std::string_view tensor, std::string_view dims, DType dtype,
            const std::vector<std::int64_t>& shape, bool required) {
    const auto* entry = problems.file().find(tensor);
    if (entry == nullptr) {
        if (required) {
            problems.add(tensor, "missing; expected {} {} = {}", name(dtype), dims,
                         describe_shape(shape));
        }
        return;
    }
    if (entry->dtype != dtype || entry->shape != shape) {
        problems.add(tensor, "is {}; expected {} {} = {}", type_and_shape(*entry), name(dtype),
                     dims, describe_shape(shape));
    }
}

// Returns the extent that each dim of a buffer must have; a new name gets the extent given first.
std::vector<std::int64_t> expected_shape(const BufferInfo& buffer, const TensorEntry& entry,
                                         std::map<std::string, std::int64_t>& sizes) {
    std::vector<std::int64_t> shape;
    for (std::size_t i = 0; i < buffer.dims.size(); ++i) {
        const auto& dim = buffer.dims[i];
        std::int64_t number = 0;
        const auto parsed = std::from_chars(dim.data(), dim.data() + dim.size(), number);
        if (parsed.ec != std::errc() || parsed.ptr != dim.data() + dim.size()) {
            const auto given = i < entry.shape.size() ? entry.shape[i] : 0;
            number = sizes.try_emplace(dim, given).first->second;
        }
        shape.push_back(number);
    }
    return shape;
}

void expect_buffer(Problems& problems, const BufferInfo& buffer,
                   std::map<std::string, std::int64_t>& sizes) {
    const auto dims = formatted("[{}]", joined(buffer.dims, ", "));
    const auto* entry = problems.file().find(buffer.name);
    if (entry == nullptr) {
        problems.add(buffer.name, "missing; the program has a buffer {}: {}{}", buffer.name,
                     name(buffer.dtype), dims);
        return;
    }
    if (entry->shape.size() != buffer.dims.size()) {
        problems.add(buffer.name, "is {}; expected {} {}, which has {} dimensions",
                     type_and_shape(*entry), name(buffer.dtype), dims, buffer.dims.size());
        return;
    }
    const auto shape = expected_shape(buffer, *entry, sizes);
    if (entry->dtype != buffer.dtype || entry->shape != shape) {
        problems.add(buffer.name, "is {}; expected {} {} = {}", type_and_shape(*entry),
                     name(buffer.dtype), dims, describe_shape(shape));
    }
}

bool is_kernel_type(DType dtype) {
    return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

} // namespace

bool is_cache_type(DType dtype) {
    return dtype == DType::e4m3 || dtype == DType::e5m2 || dtype == DType::i8;
}

ProblemShape problem_shape(const TensorFile& file) {
    Problems problems(file);
    const TensorEntry* tensors[3] = {};
    constexpr const char* kNames[] = {"q", "k", "v"};
    constexpr const char* kDims[] = {"[B, H, Q_LEN, D]", "[B, H_KV, KV_LEN, D]",
                                     "[B, H_KV, KV_LEN, DV]"};
    for (int i = 0; i < 3; ++i) {
        tensors[i] = file.find(kNames[i]);
        if (tensors[i] == nullptr) {
            problems.add(kNames[i], "missing; expected f32, f16 or bf16 {}", kDims[i]);
        } else if (tensors[i]->shape.size() != 4 ||
                   (!is_kernel_type(tensors[i]->dtype) &&
                    (i == 0 || !is_cache_type(tensors[i]->dtype)))) {
            problems.add(kNames[i], "is {}; expected f32, f16{} {}", type_and_shape(*tensors[i]),
                         i == 0 ? " or bf16" : ", bf16, e4m3, e5m2 or i8", kDims[i]);
        } else if (std::count(tensors[i]->shape.begin(), tensors[i]->shape.end(), 0) > 0) {
            problems.add(kNames[i], "is {}; every dimension must be at least 1",
                         type_and_shape(*tensors[i]));
        }
    }
    problems.throw_if_any();
    const auto &q = tensors[0]->shape, &k = tensors[1]->shape, &v = tensors[2]->shape;
    for (const auto* entry : {tensors[0], tensors[2]}) {
        if (entry->shape[3] > 256) {
            problems.add(entry->name, "is {}; head dimensions go from 1 to 256",
                         type_and_shape(*entry));
        }
    }
    if (q[1] % k[1] != 0) {
        problems.add("k", "has {} heads; expected a divisor of the {} heads of q", k[1], q[1]);
    }
    problems.throw_if_any();
    ProblemShape shape{
        .sizes = {.batch = q[0], .heads = q[1], .kv_heads = k[1], .q_len = q[2], .kv_len = k[2]},
        .head_dim = static_cast<int>(q[3]),
        .head_dim_v = static_cast<int>(v[3]),
        .dtype = tensors[0]->dtype};
    if (is_cache_type(tensors[1]->dtype)) {
        shape.kv_dtype = tensors[1]->dtype;
    }
    const auto of_keys = shape.kv_dtype.value_or(shape.dtype);
    expect(problems, "k", kDims[1], of_keys, k_shape(shape), true);
    expect(problems, "v", kDims[2], of_keys, v_shape(shape), true);
    problems.throw_if_any();
    return shape;
}

void check_inputs(const TensorFile& file, const Signature& signature, const ProblemShape& shape,
                  bool backward) {
    Problems problems(file);
    const bool is_ragged = shape.query_layout == Layout::ragged;
    expect(problems, "do", is_ragged ? "[TOTAL_Q, H, DV]" : "[B, H, Q_LEN, DV]", shape.dtype,
           o_shape(shape), backward);
    expect(problems, "dlse", is_ragged ? "[TOTAL_Q, H]" : "[B, H, Q_LEN]", DType::f32,
           lse_shape(shape), false);
    std::set<std::string> wanted{"q", "k", "v", "do", "dlse"};
    if (shape.kv_dtype) {
        for (const char* scale : {"k_scale", "v_scale"}) {
            wanted.insert(scale);
            const auto* entry = file.find(scale);
            if (entry != nullptr && entry->dtype != DType::f32) {
                problems.add(scale, "is {}; expected f32", type_and_shape(*entry));
            }
        }
    }
    if (shape.query_layout != Layout::dense || shape.key_layout != Layout::dense) {
#define FLEXC_LENGTH_ARRAY(name, dims) wanted.insert(#name);
#include "common/lengths.def"
    }
    auto sizes = size_names(shape);
    for (const auto& buffer : signature.buffers) {
        if (!wanted.insert(buffer.name).second) {
            problems.add(buffer.name, "the program has a buffer of this name, which stands for an "
                                      "input of every run; rename the buffer");
            continue;
        }
        expect_buffer(problems, buffer, sizes);
    }
    std::vector<std::string> buffer_names;
    for (const auto& buffer : signature.buffers) {
        buffer_names.push_back(buffer.name);
    }
    for (const auto& entry : file.entries()) {
        if (wanted.contains(entry.name)) {
            continue;
        }
        const auto nearest = nearest_name(entry.name, buffer_names);
        problems.add(entry.name, "not expected; the program has {}{}",
                     buffer_names.empty() ? std::string("no buffers")
                                          : formatted("the buffers {}", joined(buffer_names, ", ")),
                     nearest.empty() ? "" : formatted(" (did you mean '{}'?)", nearest));
    }
    problems.throw_if_any();
}

} // namespace flexc::cli
