// Tensor files of requests, from their header to attention, as `flexc run` takes them.
#include <array>

#include <nlohmann/json.hpp>

#include "flexc/attention_call.h"
#include "flexc/command.h"
#include "flexc/flexc.h"
#include "flexc/input_check.h"
#include "flexc/layout_option.h"
#include "flexc/safetensors.h"
#include "tensor_files.h"

namespace flexc::fuzz {

namespace {

using nlohmann::json;

// What the command is given beside the file.
constexpr std::string_view kText = "score_mod = score\nmask_mod = q_idx >= kv_idx";
// Scores that an input may ask for: the time of one is limited.
constexpr std::int64_t kMostScores = 2'000'000;

struct FileMaker {
    json header = json::object();
    std::string data;

    void floats(const char* name, const std::vector<std::uint64_t>& shape) {
        std::uint64_t bytes = sizeof(float);
        for (const std::uint64_t extent : shape)
            bytes *= extent;
        add(name, "F32", shape, std::string(bytes, '\x3e'));
    }
    void numbers(const char* name, const std::vector<std::int32_t>& values) {
        std::string bytes;
        for (const std::int32_t value : values)
            for (int i = 0; i < 4; ++i)
                bytes += static_cast<char>(static_cast<std::uint32_t>(value) >> (8 * i) & 0xff);
        add(name, "I32", {values.size()}, bytes);
    }
    void add(const char* name, const char* type, const std::vector<std::uint64_t>& shape,
             const std::string& bytes) {
        header[name] = tensor_entry(type, shape, data.size(), data.size() + bytes.size());
        data += bytes;
    }
    std::string file() const { return file_of(header.dump(), data); }
};

// Three requests of 2, 0 and 3 queries and of 3, 4 and 1 keys, in every layout.
Corpus request_corpus() {
    FileMaker ragged, table, lists, dense_keys, dense_queries, eight_bits;
    for (FileMaker* maker : {&ragged, &table, &lists, &dense_keys, &eight_bits}) {
        maker->floats("q", {5, 2, 4});
        maker->numbers("cu_seqlens_q", {0, 2, 2, 5});
    }
    for (FileMaker* maker : {&ragged, &dense_queries}) {
        maker->floats("k", {8, 1, 4});
        maker->floats("v", {8, 1, 3});
        maker->numbers("cu_seqlens_k", {0, 3, 7, 8});
    }
    ragged.numbers("seqused_q", {2, 0, 1});
    ragged.numbers("query_starts", {1, 0, -2});
    for (FileMaker* maker : {&table, &lists}) {
        maker->floats("k", {4, 2, 1, 4});
        maker->floats("v", {4, 2, 1, 3});
    }
    table.numbers("page_table", {3, 0, 1, 2, 0, 0});
    table.numbers("seqused_k", {3, 4, 1});
    lists.numbers("page_indptr", {0, 2, 4, 5});
    lists.numbers("page_indices", {3, 0, 1, 2, 0});
    lists.numbers("last_page_len", {1, 2, 1});
    dense_keys.floats("k", {3, 1, 4, 4});
    dense_keys.floats("v", {3, 1, 4, 3});
    dense_keys.numbers("seqused_k", {3, 4, 1});
    dense_queries.floats("q", {3, 2, 3, 4});
    eight_bits.add("k", "F8_E4M3", {8, 1, 4}, std::string(32, '\x38'));
    eight_bits.add("v", "F8_E4M3", {8, 1, 4}, std::string(32, '\x38'));
    eight_bits.numbers("cu_seqlens_k", {0, 3, 7, 8});
    eight_bits.floats("k_scale", {3, 1});
    FileMaker dense;
    dense.floats("q", {1, 2, 5, 4});
    dense.floats("k", {1, 1, 7, 4});
    dense.floats("v", {1, 1, 7, 3});
    return {ragged.file(),        table.file(),      lists.file(), dense_keys.file(),
            dense_queries.file(), eight_bits.file(), dense.file()};
}

// Numbers of the last arrays, which are lengths and pages, or anything of the file.
std::string mutate_requests(const std::string& input, const Corpus& corpus, Random& random) {
    constexpr std::int64_t kNumbers = 14;
    if (random.chance(50) || input.size() < kNumbers * sizeof(std::int32_t))
        return mutate_file(input, corpus, random);
    std::string text = input;
    for (auto changes = random.integer(1, 3); changes > 0; --changes) {
        const auto value = static_cast<std::uint32_t>(
            random.chance(80)
                ? random.integer(0, 8)
                : random.pick(std::array<std::int64_t, 4>{-1, 0x7fffffff, 1 << 30, 1025}));
        const auto back = static_cast<std::size_t>(random.integer(1, kNumbers)) * sizeof value;
        for (std::size_t i = 0; i < sizeof value; ++i)
            text[text.size() - back + i] = static_cast<char>(value >> (8 * i) & 0xff);
    }
    return text;
}

// The layouts that the tensors look like, or others.
cli::LayoutOption layouts_of(const cli::TensorFile& file, Random& random) {
    cli::LayoutOption option;
    const auto has_rank = [&](const char* name, std::size_t rank) {
        const cli::TensorEntry* entry = file.find(name);
        return entry != nullptr && entry->shape.size() == rank;
    };
    const bool has_pages =
        file.find("page_table") != nullptr || file.find("page_indptr") != nullptr;
    if (has_rank("q", 3)) option.query_layout = "ragged";
    option.key_layout = has_rank("k", 3) ? "ragged" : has_pages ? "paged" : "dense";
    if (random.chance(10)) option.query_layout = random.pick(std::array{"dense", "ragged"});
    if (random.chance(10)) option.key_layout = random.pick(std::array{"dense", "ragged", "paged"});
    if (!cli::is_dense(option)) option.query_start = random.pick(std::array{"auto", "zero", "end"});
    return option;
}

void attend(const cli::TensorFile& file, Random& random) {
    const cli::LayoutOption option = layouts_of(file, random);
    const cli::ProblemShape shape =
        cli::is_dense(option) ? cli::problem_shape(file) : cli::requests_shape(file, option);
    CompileOptions options;
    cli::apply(option, options);
    options.dtype = shape.dtype;
    options.kv_dtype = shape.kv_dtype;
    options.head_dim = shape.head_dim;
    options.head_dim_v = shape.head_dim_v;
    options.device = Device::cpu();
    options.backward = false;
    options.cache.disk = false;
    cli::check_inputs(file, cli::value_of(flexc::check(kText, options)), shape, false);
    const Sizes& sizes = shape.sizes;
    std::int64_t scores = 1;
    for (const std::int64_t size : {sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len})
        if (__builtin_mul_overflow(scores, size, &scores) || scores > kMostScores) return;

    cli::AttentionCall call(cli::value_of(compile(kText, options)), shape, {});
    require(cli::q_shape(shape) == file.find("q")->shape &&
                cli::k_shape(shape) == file.find("k")->shape &&
                cli::v_shape(shape) == file.find("v")->shape,
            "a tensor is taken for one of another shape");
    for (const char* name : {"q", "k", "v"})
        call.set(name, cli::value_of(file.read(*file.find(name))));
    for (const char* name : {"k_scale", "v_scale"})
        if (const cli::TensorEntry* entry = file.find(name))
            call.set_scale(name, entry->shape, cli::value_of(file.read(*entry)));
    call.prepare(false);
    cli::require(call.forward());
    count_accepted();
}

void run_request_files(std::string_view input) {
    const MemoryFile memory(input);
    const auto file = cli::TensorFile::open(memory.path());
    if (!file) return;
    Random random(seed_of(input));
    try {
        attend(*file, random);
    } catch (const cli::CommandError& error) {
        require(error.code() != name(ErrorCode::internal),
                std::string("internal: ") + error.what());
        require(*error.what() != '\0', "an error says nothing");
    }
}

} // namespace

const Target kRequests = {.name = "requests",
                          .meaning = "tensor files of requests, as the command runs them",
                          .cpu_seconds = 5,
                          .corpus = request_corpus,
                          .mutate = mutate_requests,
                          .run = run_request_files};

} // namespace flexc::fuzz
