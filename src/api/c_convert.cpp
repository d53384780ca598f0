#include "api/c_convert.h"

#include <algorithm>
#include <cmath>

#include "support/key_layout.h"

namespace flexc::api {

namespace {

static_assert(FLEXC_F64 == static_cast<int>(DType::f64) + 1);
static_assert(FLEXC_F32 == static_cast<int>(DType::f32) + 1);
static_assert(FLEXC_F16 == static_cast<int>(DType::f16) + 1);
static_assert(FLEXC_BF16 == static_cast<int>(DType::bf16) + 1);
static_assert(FLEXC_I64 == static_cast<int>(DType::i64) + 1);
static_assert(FLEXC_I32 == static_cast<int>(DType::i32) + 1);
static_assert(FLEXC_I16 == static_cast<int>(DType::i16) + 1);
static_assert(FLEXC_I8 == static_cast<int>(DType::i8) + 1);
static_assert(FLEXC_U8 == static_cast<int>(DType::u8) + 1);
static_assert(FLEXC_BOOL == static_cast<int>(DType::boolean) + 1);
static_assert(FLEXC_E4M3 == static_cast<int>(DType::e4m3) + 1);
static_assert(FLEXC_E5M2 == static_cast<int>(DType::e5m2) + 1);
static_assert(FLEXC_DEVICE_CUDA == static_cast<int>(Device::Kind::cuda));
static_assert(FLEXC_BACKWARD_SPECIALIZED == static_cast<int>(BackwardKernel::specialized));
static_assert(FLEXC_GRADIENT_BUFFER == static_cast<int>(GradientType::buffer));
static_assert(FLEXC_MASK_TILES_BLOCK_MASK == static_cast<int>(TileSource::block_mask));
static_assert(FLEXC_QUERY_START_END == static_cast<int>(QueryStart::end));
static_assert(FLEXC_LOG_ERROR == static_cast<int>(LogLevel::error));
static_assert(FLEXC_ERROR_SYNTAX == static_cast<int>(ErrorCode::syntax) + 1);
static_assert(FLEXC_ERROR_CANCELLED == static_cast<int>(ErrorCode::cancelled) + 1);
static_assert(FLEXC_ERROR_INTERNAL == static_cast<int>(ErrorCode::internal) + 1);
static_assert(FLEXC_MAX_DIMS == kMaxDims);

Result<DType> read_dtype(std::int32_t given, DType fallback, const std::string& what) {
    if (given == FLEXC_DEFAULT_DTYPE) return fallback;
    if (given < FLEXC_F64 || given > FLEXC_E5M2)
        return invalid(what + ": there is no dtype " + std::to_string(given));
    return static_cast<DType>(given - 1);
}

Result<BufferDeclaration> read_buffer(const flexc_buffer_declaration& given) {
    if (given.name == nullptr) return invalid("a buffer has no name");
    const std::string what = std::string("buffer '") + given.name + "'";
    const auto type = read_dtype(given.dtype, DType::f32, what);
    if (!type) return type.error();
    BufferDeclaration buffer{
        .name = given.name, .type = *type, .dims = {}, .grad = given.grad != 0};
    if (given.dims == nullptr && given.dim_count != 0) return invalid(what + ": dims is NULL");
    for (std::size_t i = 0; i < given.dim_count; ++i) {
        if (given.dims[i] == nullptr) return invalid(what + ": a dim is NULL");
        buffer.dims.emplace_back(given.dims[i]);
    }
    return buffer;
}

Result<ParamDeclaration> read_param(const flexc_param_declaration& given) {
    if (given.name == nullptr) return invalid("a param has no name");
    const auto type =
        read_dtype(given.dtype, DType::f32, std::string("param '") + given.name + "'");
    if (!type) return type.error();
    return ParamDeclaration{.name = given.name, .value = given.value, .type = *type};
}

// Reads several tensors and keeps the first error.
class TensorReader {
  public:
    void read(const flexc_tensor* given, const char* name, TensorView& view) {
        if (given == nullptr || error_) return;
        auto tensor = read_tensor(given, name);
        if (tensor)
            view = *tensor;
        else
            error_ = tensor.error();
    }
    template <typename Tensors> Result<Tensors> finish(Tensors tensors) {
        if (error_) return *error_;
        return tensors;
    }

  private:
    std::optional<Error> error_;
};

// Reads the tensors that both passes have.
template <typename Given, typename Tensors>
void read_common(TensorReader& reader, const Given& given, Tensors& tensors) {
    reader.read(given.q, "q", tensors.q);
    reader.read(given.k, "k", tensors.k);
    reader.read(given.v, "v", tensors.v);
    reader.read(given.o, "o", tensors.o);
    reader.read(given.lse, "lse", tensors.lse);
}

} // namespace

std::string text_or(const char* given, std::string fallback) {
    return given == nullptr ? std::move(fallback) : std::string(given);
}

Error invalid(std::string message) { return {ErrorCode::invalid_option, std::move(message)}; }

Result<CompileOptions> read_options(const flexc_compile_options* given) {
    CompileOptions options;
    if (given == nullptr) return options;
    const auto read = read_struct(given, "options");
    if (!read) return read.error();

    const auto dtype = read_dtype(read->dtype, options.dtype, "options");
    if (!dtype) return dtype.error();
    if (read->kv_dtype != FLEXC_DEFAULT_DTYPE) {
        const auto kv_dtype = read_dtype(read->kv_dtype, options.dtype, "kv_dtype");
        if (!kv_dtype) return kv_dtype.error();
        options.kv_dtype = *kv_dtype;
    }
    const auto device = read_device(read->device, read->device_index);
    if (!device) return device.error();
    const auto forward =
        read_enum<ForwardKernel>(read->forward_kernel, FLEXC_FORWARD_SPECIALIZED, "forward_kernel");
    if (!forward) return forward.error();
    const auto backward = read_enum<BackwardKernel>(read->backward_kernel,
                                                    FLEXC_BACKWARD_SPECIALIZED, "backward_kernel");
    if (!backward) return backward.error();
    const auto gradient_type =
        read_enum<GradientType>(read->gradient_type, FLEXC_GRADIENT_BUFFER, "gradient_type");
    if (!gradient_type) return gradient_type.error();
    const auto tiles =
        read_enum<TileSource>(read->mask_tiles, FLEXC_MASK_TILES_BLOCK_MASK, "mask_tiles");
    if (!tiles) return tiles.error();

    const int last_layout = static_cast<int>(support::key_layouts().size()) - 1;
    const auto queries = read_enum<Layout>(read->query_layout, last_layout, "query_layout");
    if (!queries) return queries.error();
    const auto keys = read_enum<Layout>(read->key_layout, last_layout, "key_layout");
    if (!keys) return keys.error();

    options.query_layout = *queries;
    options.part_of_heads = read->part_of_heads != 0;
    options.key_layout = *keys;
    options.dtype = *dtype;
    options.device = *device;
    options.forward_kernel = *forward;
    options.backward_kernel = *backward;
    options.gradient_type = *gradient_type;
    options.tile_source = *tiles;
    if (read->head_dim != 0) options.head_dim = read->head_dim;
    options.head_dim_v = read->head_dim_v;
    options.backward = read->forward_only == 0;
    options.deterministic = read->deterministic != 0;
    options.batch_invariant = read->batch_invariant != 0;
    options.max_scores = read->max_scores != 0;
    options.report_out_of_range = read->report_out_of_range != 0;
    options.source_name = text_or(read->source_name, options.source_name);
    options.mask_mod = text_or(read->mask_mod, "");
    options.sink = text_or(read->sink, "");
    options.schedule = text_or(read->schedule, "");
    options.cache.memory = read->no_memory_cache == 0;
    options.cache.disk = read->no_disk_cache == 0;
    options.cache.directory = text_or(read->cache_directory, "");
    options.cache.pack = text_or(read->pack, "");
    options.count_visible = read->count_visible != 0;
    if (read->cache_max_bytes != 0) options.cache.max_bytes = read->cache_max_bytes;
    if (std::isnan(read->max_compile_seconds)) return invalid("max_compile_seconds is NaN");
    if (read->max_compile_seconds != 0)
        options.limits.seconds = std::max(read->max_compile_seconds, 0.0);
    if (read->max_compile_memory != 0)
        options.limits.memory_bytes =
            read->max_compile_memory == UINT64_MAX ? 0 : read->max_compile_memory;
    if (read->cancel != nullptr) options.cancel = token_of(read->cancel);

    for (std::size_t i = 0; i < read->buffer_count; ++i) {
        const auto element = read_element(read->buffers, i, "buffers");
        if (!element) return element.error();
        auto buffer = read_buffer(*element);
        if (!buffer) return buffer.error();
        options.buffers.push_back(std::move(*buffer));
    }
    for (std::size_t i = 0; i < read->param_count; ++i) {
        const auto element = read_element(read->params, i, "params");
        if (!element) return element.error();
        auto param = read_param(*element);
        if (!param) return param.error();
        options.params.push_back(std::move(*param));
    }
    return options;
}

Result<Device> read_device(std::int32_t device, std::int32_t index) {
    const auto kind = read_enum<Device::Kind>(device, FLEXC_DEVICE_CUDA, "device");
    if (!kind) return kind.error();
    return Device{*kind, index};
}

Result<Sizes> read_sizes(const flexc_sizes* given) {
    const auto read = read_struct(given, "sizes");
    if (!read) return read.error();
    return Sizes{.batch = read->batch,
                 .heads = read->heads,
                 .kv_heads = read->kv_heads,
                 .q_len = read->q_len,
                 .kv_len = read->kv_len};
}

Result<MaskTiles> read_mask_tile(const flexc_mask_tile* given) {
    MaskTiles tile;
    if (given == nullptr) return tile;
    const auto read = read_struct(given, "tile");
    if (!read) return read.error();
    if (read->queries != 0) tile.queries = read->queries;
    if (read->keys != 0) tile.keys = read->keys;
    return tile;
}

Result<TensorView> read_tensor(const flexc_tensor* given, const char* what) {
    const auto read = read_struct(given, what);
    if (!read) return read.error();
    const void* data = read->data != nullptr ? read->data : read->const_data;
    if (data == nullptr) return TensorView{};
    if (read->data != nullptr && read->const_data != nullptr)
        return invalid(std::string(what) + " has data and const_data: give one of them");
    if (read->dtype == FLEXC_DEFAULT_DTYPE) return invalid(std::string(what) + " has no dtype");
    const auto dtype = read_dtype(read->dtype, DType::f32, what);
    if (!dtype) return dtype.error();
    if (read->rank < 0 || read->rank > FLEXC_MAX_DIMS)
        return invalid(std::string(what) + " has rank " + std::to_string(read->rank) +
                       ", which is not 0 to " + std::to_string(FLEXC_MAX_DIMS));
    const std::span<const std::int64_t> shape(read->shape, static_cast<std::size_t>(read->rank));
    auto view = read->data != nullptr ? TensorView::contiguous(read->data, *dtype, shape)
                                      : TensorView::read_only(data, *dtype, shape);
    if (read->has_strides != 0) std::copy_n(read->strides, read->rank, view.strides.begin());
    return view;
}

Result<std::vector<NamedTensor>> read_tensors(const flexc_named_tensor* given, std::size_t count) {
    std::vector<NamedTensor> result;
    for (std::size_t i = 0; i < count; ++i) {
        const auto element = read_element(given, i, "buffers");
        if (!element) return element.error();
        if (element->name == nullptr) return invalid("a tensor has no name");
        const auto tensor = read_tensor(element->tensor, element->name);
        if (!tensor) return tensor.error();
        result.push_back({.name = element->name, .tensor = *tensor});
    }
    return result;
}

Result<ForwardTensors> read_forward(const flexc_forward_tensors* given) {
    const auto read = read_struct(given, "tensors");
    if (!read) return read.error();
    ForwardTensors tensors;
    TensorReader reader;
    read_common(reader, *read, tensors);
    reader.read(read->k_scale, "k_scale", tensors.k_scale);
    reader.read(read->v_scale, "v_scale", tensors.v_scale);
    reader.read(read->max_scores, "max_scores", tensors.max_scores);
    return reader.finish(tensors);
}

Result<BackwardTensors> read_backward(const flexc_backward_tensors* given) {
    const auto read = read_struct(given, "tensors");
    if (!read) return read.error();
    BackwardTensors tensors;
    TensorReader reader;
    read_common(reader, *read, tensors);
    reader.read(read->d_out, "d_out", tensors.d_out);
    reader.read(read->d_lse, "d_lse", tensors.d_lse);
    reader.read(read->dq, "dq", tensors.dq);
    reader.read(read->dk, "dk", tensors.dk);
    reader.read(read->dv, "dv", tensors.dv);
    return reader.finish(tensors);
}

Result<Lengths> read_lengths(const flexc_lengths* given) {
    const auto read = read_struct(given, "lengths");
    if (!read) return read.error();
    const auto start =
        read_enum<QueryStart>(read->query_start, FLEXC_QUERY_START_END, "query_start");
    if (!start) return start.error();
    Lengths lengths;
    struct Array {
        const char* name;
        const std::int32_t* numbers;
        std::size_t count;
        std::span<const std::int32_t>& into;
    };
    const Array arrays[] = {
#define FLEXC_LENGTH_ARRAY(name, dims) {#name, read->name, read->name##_count, lengths.name},
#include "common/lengths.def"
    };
    for (const Array& array : arrays) {
        if (array.numbers == nullptr && array.count != 0)
            return invalid(std::string(array.name) + " is NULL");
        array.into = {array.numbers, array.count};
    }
#define FLEXC_LENGTH_SIZE(name) lengths.name = read->name;
#include "common/lengths.def"
    lengths.query_start = *start;
    lengths.on_device = read->on_device != 0;
    return lengths;
}

Result<LengthTensors> read_length_tensors(const flexc_length_tensors* given) {
    const auto read = read_struct(given, "lengths");
    if (!read) return read.error();
    LengthTensors tensors;
    TensorReader reader;
#define FLEXC_LENGTH_ARRAY(name, dims) reader.read(read->name, #name, tensors.name);
#include "common/lengths.def"
    return reader.finish(tensors);
}

Result<Workspace> read_workspace(const flexc_workspace* given) {
    if (given == nullptr) return Workspace{};
    const auto read = read_struct(given, "workspace");
    if (!read) return read.error();
    return Workspace{.data = read->data, .bytes = read->bytes};
}

Result<std::vector<ParamValue>> read_params(const flexc_param_value* given, std::size_t count) {
    std::vector<ParamValue> params;
    for (std::size_t i = 0; i < count; ++i) {
        const auto param = read_element(given, i, "params");
        if (!param) return param.error();
        if (param->name == nullptr) return invalid("a param has no name");
        params.push_back({.name = param->name, .value = param->value});
    }
    return params;
}

Result<ReadPlanOptions> read_plan_options(const flexc_plan_options* given) {
    ReadPlanOptions result;
    if (given == nullptr) return result;
    const auto read = read_struct(given, "plan options");
    if (!read) return read.error();
    auto params = read_params(read->params, read->param_count);
    if (!params) return params.error();
    result.params = std::move(*params);
    PlanOptions& options = result.options;
    if (read->has_scale != 0) options.scale = read->scale;
    options.q_offset = read->q_offset;
    options.kv_offset = read->kv_offset;
    if (read->global_q_len != 0) options.global_q_len = read->global_q_len;
    if (read->global_kv_len != 0) options.global_kv_len = read->global_kv_len;
    options.head_offset = read->head_offset;
    if (read->global_heads != 0) options.global_heads = read->global_heads;
    if (read->global_kv_heads != 0) options.global_kv_heads = read->global_kv_heads;
    options.accumulate_gradients = read->accumulate_gradients != 0;
    options.block_mask_per_call = read->block_mask_per_call != 0;
    options.cpu_threads = {read->cpu_threads, read->parallel_for, read->parallel_user};
    if (read->lengths != nullptr) {
        auto lengths = read_lengths(read->lengths);
        if (!lengths) return lengths.error();
        options.lengths = *lengths;
    }
    options.params = result.params; // the vector's memory moves with it
    if (read->forward != nullptr) {
        auto tensors = read_forward(read->forward);
        if (!tensors) return tensors.error();
        result.forward = std::make_unique<const ForwardTensors>(*tensors);
        options.forward = result.forward.get();
    }
    if (read->backward != nullptr) {
        auto tensors = read_backward(read->backward);
        if (!tensors) return tensors.error();
        result.backward = std::make_unique<const BackwardTensors>(*tensors);
        options.backward = result.backward.get();
    }
    return result;
}

std::int32_t to_c(DType dtype) { return static_cast<std::int32_t>(dtype) + 1; }
std::int32_t to_c(ErrorCode code) { return static_cast<std::int32_t>(code) + 1; }
std::int32_t to_c(Device::Kind kind) { return static_cast<std::int32_t>(kind); }

} // namespace flexc::api
