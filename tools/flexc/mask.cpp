// flexc mask: the block mask of a mask_mod, as a picture or as JSON.
#include <algorithm>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/mask.h"
#include "flexc/mod_option.h"
#include "flexc/png.h"
#include "flexc/safetensors.h"
#include "flexc/time_limit.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

constexpr std::int64_t kTooLarge = 1 << 20; // of head dims: the library says so

struct MaskOptions {
    ModOption mod;
    std::int64_t q = 0, kv = 0;
    std::optional<std::int64_t> b, h, h_kv, head_dim, head_dim_v;
    std::vector<std::int64_t> tile{128, 128};
    std::string inputs, png;
    std::optional<double> max_seconds;
    bool json = false;
};

struct Arrays {
    std::vector<std::string> names;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<TensorView> views;
    std::map<std::string, std::int64_t> extents; // of dims that have a name

    std::vector<NamedTensor> named() const {
        std::vector<NamedTensor> result;
        for (std::size_t i = 0; i < names.size(); ++i) {
            result.push_back({names[i], views[i]});
        }
        return result;
    }
};

// The program's buffers that the file has; whatever else it holds belongs to other commands.
Arrays load_arrays(const std::string& path, const Signature& signature) {
    Arrays arrays;
    if (path.empty()) {
        return arrays;
    }
    const auto file = value_of(TensorFile::open(path));
    for (const auto& buffer : signature.buffers) {
        const auto* entry = file.find(buffer.name);
        if (entry == nullptr) {
            continue;
        }
        arrays.names.push_back(buffer.name);
        arrays.bytes.push_back(value_of(file.read(*entry)));
        arrays.views.push_back(
            TensorView::contiguous(arrays.bytes.back().data(), entry->dtype, entry->shape));
        for (std::size_t i = 0; i < std::min(buffer.dims.size(), entry->shape.size()); ++i) {
            arrays.extents.try_emplace(buffer.dims[i], entry->shape[i]);
        }
    }
    return arrays;
}

// What is not said is as the arrays have it, or 1.
Sizes sizes_of(const MaskOptions& options, const Arrays& arrays) {
    const auto count = [&](const std::optional<std::int64_t>& given, const char* dim,
                           std::int64_t otherwise) {
        const auto found = arrays.extents.find(dim);
        return given ? *given : found != arrays.extents.end() ? found->second : otherwise;
    };
    const auto kv_heads = count(options.h_kv, "H_KV", 0);
    const auto heads = count(options.h, "H", std::max<std::int64_t>(kv_heads, 1));
    return {.batch = count(options.b, "B", 1),
            .heads = heads,
            .kv_heads = kv_heads == 0 ? heads : kv_heads,
            .q_len = options.q,
            .kv_len = options.kv};
}

// A default would change the picture of a mask that reads D, without a word.
void set_head_dims(const MaskOptions& options, const Arrays& arrays, const Signature& signature,
                   CompileOptions& compile_options) {
    const auto set = [&](const std::optional<std::int64_t>& given, const char* size,
                         const char* option, int& dim) {
        const auto found = arrays.extents.find(size);
        if (given) {
            dim = static_cast<int>(*given);
        } else if (found != arrays.extents.end()) {
            dim = static_cast<int>(std::min<std::int64_t>(found->second, kTooLarge));
        } else if (std::ranges::find(signature.mask_sizes, size) != signature.mask_sizes.end()) {
            fail_usage(formatted("the mask reads {}; say what it is with {} N", size, option));
        }
    };
    set(options.head_dim, "D", "--head-dim", compile_options.head_dim);
    compile_options.head_dim_v = compile_options.head_dim;
    set(options.head_dim_v ? options.head_dim_v : options.head_dim, "DV", "--head-dim-v",
        compile_options.head_dim_v);
}

// One letter or pixel stands for `step` x `step` tiles: what they all are, else partial.
char summary(const MaskMap& map, std::int64_t batch, std::int64_t head, std::int64_t row,
             std::int64_t column, std::int64_t step) {
    char result = 0;
    for (auto i = row * step; i < std::min((row + 1) * step, map.query_tiles); ++i) {
        for (const char tile :
             map.row(batch, head, i)
                 .substr(static_cast<std::size_t>(column * step), static_cast<std::size_t>(step))) {
            result = result == 0 || result == tile ? tile : '/';
        }
    }
    return result;
}

std::int64_t steps(std::int64_t tiles, std::int64_t step) { return (tiles + step - 1) / step; }

void print_maps(const MaskMap& map) {
    constexpr std::int64_t kMostColumns = 96;
    const auto step = steps(std::max(map.query_tiles, map.key_tiles), kMostColumns);
    for (std::int64_t b = 0; b < map.batches; ++b) {
        for (std::int64_t h = 0; h < map.heads; ++h) {
            if (map.batches * map.heads > 1) {
                print(stdout, "batch {}, head {}\n", b, h);
            }
            for (std::int64_t row = 0; row < steps(map.query_tiles, step); ++row) {
                std::string line;
                for (std::int64_t column = 0; column < steps(map.key_tiles, step); ++column) {
                    line += summary(map, b, h, row, column, step);
                }
                print(stdout, "{}\n", line);
            }
        }
    }
    if (step > 1) {
        print(stdout, "one letter is {} x {} tiles\n", step, step);
    }
}

// Maps below each other, with a gap between.
Picture draw(const MaskMap& map) {
    constexpr std::int64_t kMostPixels = 1024, kMostOfAll = std::int64_t{1} << 28;
    constexpr int kGap = 4;
    constexpr std::uint8_t kEmpty = 255, kPartial = 150, kFull = 40, kBackground = 215;
    const auto longest = std::max(map.query_tiles, map.key_tiles);
    const auto step = steps(longest, kMostPixels);
    const auto pixels = static_cast<int>(std::max<std::int64_t>(kMostPixels / 2 / longest, 1));
    const auto rows = static_cast<int>(steps(map.query_tiles, step));
    const auto columns = static_cast<int>(steps(map.key_tiles, step));
    const auto all = map.batches * map.heads;
    if (all > kMostOfAll / (columns * pixels) / (rows * pixels + kGap)) {
        fail(
            {ErrorCode::limit,
             formatted("a picture of {} maps is too large: give fewer batches (--b) or heads (--h)",
                       all)});
    }
    const auto maps = static_cast<int>(all);
    Picture picture(columns * pixels, maps * (rows * pixels + kGap) - kGap, kBackground);
    for (int index = 0; index < maps; ++index) {
        const int top = index * (rows * pixels + kGap);
        for (int row = 0; row < rows; ++row) {
            for (int column = 0; column < columns; ++column) {
                const char tile =
                    summary(map, index / map.heads, index % map.heads, row, column, step);
                const auto shade = tile == '#' ? kFull : tile == '/' ? kPartial : kEmpty;
                for (int pixel = 0; pixel < pixels * pixels; ++pixel) {
                    picture.at(column * pixels + pixel % pixels,
                               top + row * pixels + pixel / pixels) = shade;
                }
            }
        }
    }
    return picture;
}

void run(const MaskOptions& options) {
    if (options.tile.size() != 2) {
        fail_usage("--tile takes two numbers, queries and keys: --tile 128,64");
    }
    auto mod = load_mod(options.mod);
    const auto signature = signature_of(mod);
    const auto arrays = load_arrays(options.inputs, signature);
    set_head_dims(options, arrays, signature, mod.options);
    if (options.max_seconds) {
        mod.options.limits.seconds = parse_seconds(*options.max_seconds);
    }
    std::vector<ParamValue> params;
    for (const auto& [name, value] : mod.param_values) {
        params.push_back({name, value});
    }
    const auto named = arrays.named();
    const auto map = value_of(mask_map(mod.text, mod.options, sizes_of(options, arrays), named,
                                       {options.tile[0], options.tile[1]}, {.params = params}));
    if (!options.png.empty()) {
        require(write_png(options.png, draw(map)));
    }
    const auto count = [&](char tile) { return std::ranges::count(map.tiles, tile); };
    if (!options.json) {
        if (options.png.empty()) {
            print_maps(map);
        }
        print(stdout, "tiles of {} x {}: {} empty '.', {} partial '/', {} full '#'\n",
              options.tile[0], options.tile[1], count('.'), count('/'), count('#'));
        return;
    }
    auto maps = nlohmann::json::array();
    for (std::int64_t b = 0; b < map.batches; ++b) {
        for (std::int64_t h = 0; h < map.heads; ++h) {
            auto rows = nlohmann::json::array();
            for (std::int64_t row = 0; row < map.query_tiles; ++row) {
                rows.push_back(map.row(b, h, row));
            }
            maps.push_back({{"b", b}, {"h", h}, {"rows", std::move(rows)}});
        }
    }
    print_json({{"tile", options.tile},
                {"empty", count('.')},
                {"partial", count('/')},
                {"full", count('#')},
                {"block_masks", std::move(maps)}});
}

} // namespace

void add_mask(CommandLine program) {
    auto options = std::make_shared<MaskOptions>();
    auto command =
        program.command("mask", "Show which tiles of the score matrix a mask leaves",
                        "flexc mask causal --q 1024 --kv 1024 --tile 128,64 --png causal.png");
    add_mod_options(command, options->mod, true);
    command.option("--q", options->q, "Q_LEN", {.required = true});
    command.option("--kv", options->kv, "KV_LEN", {.required = true});
    command.option("--b", options->b, "B; else as the inputs have it, or 1");
    command.option("--h", options->h, "H; else as the inputs have it, or 1");
    command.option("--h-kv", options->h_kv, "H_KV; else H");
    command.option("--head-dim", options->head_dim,
                   "D, 1 to 256; needed where the mask reads it and no input has it",
                   {.most = 256});
    command.option("--head-dim-v", options->head_dim_v, "DV, when it is not D", {.most = 256});
    command.option("--tile", options->tile, "M,N: queries and keys of a tile",
                   {.separator = ',', .count = 2});
    command.option("--inputs", options->inputs,
                   "safetensors with the buffers that the mask reads, by name", {.file = true});
    command.option("--png", options->png,
                   "Write the picture to this file: black full, grey partial, white empty",
                   {.file = true});
    add_time_option(command, options->max_seconds, "120");
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
