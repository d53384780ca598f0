#include "flexc/mod_option.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>

#include "flexc/command.h"
#include "support/text.h"
#include "support/usual_types.h"

namespace flexc::cli {
namespace {

// Programs are limited to 64 KiB; one byte more is enough for the library to say so.
constexpr std::size_t kMaxReadBytes = 64 * 1024 + 1;

std::string read_program(std::istream& stream) {
    std::string text(kMaxReadBytes, '\0');
    stream.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(stream.gcount()));
    return text;
}

std::string read_program_file(const std::string& path) {
    std::error_code failure;
    if (std::filesystem::is_directory(path, failure)) {
        fail({ErrorCode::io, path + ": is a folder, expected a program"});
    }
    errno = 0;
    std::ifstream stream(path, std::ios::binary);
    if (!stream) {
        fail({ErrorCode::io, formatted("{}: {}", path, std::strerror(errno))});
    }
    return read_program(stream);
}

bool looks_like_path(const std::string& mod) {
    return mod.find_first_of("/.") != std::string::npos;
}

void load_named(const std::string& mod, ModText& result) {
    std::error_code failure;
    if (looks_like_path(mod) || std::filesystem::is_regular_file(mod, failure)) {
        result.text = read_program_file(mod);
        return;
    }
    auto entry = library_mod(mod);
    if (!entry) {
        fail(formatted("there is no file '{}', and {}; `flexc list` shows them", mod,
                       entry.error().message));
    }
    result.text = std::move(entry->text);
}

// A bare expression has no place to declare params, so --param does it.
bool declares_params(const std::string& text) {
    static const std::regex kDeclaration("(^|[\\n;}])\\s*param\\s");
    return std::regex_search(text, kDeclaration);
}

ParamDeclaration declare_param(const std::string& name, const std::string& literal, double value) {
    ParamDeclaration declaration{.name = name, .value = value, .type = DType::f32};
    if (literal == "true" || literal == "false") {
        declaration.type = DType::boolean;
    } else if (literal.find_first_not_of("+-0123456789") == std::string::npos) {
        declaration.type = DType::i64;
    }
    return declaration;
}

void load_params(const ModOption& option, ModText& result) {
    static const std::regex kIdentifier("[A-Za-z_][A-Za-z0-9_]*");
    for (const auto& text : option.params) {
        const auto [name, literal] = split_assignment(text, "--param");
        if (!std::regex_match(name, kIdentifier)) {
            fail_usage(formatted("--param {}: '{}' is not a name", text, name));
        }
        const double value = literal == "true"    ? 1
                             : literal == "false" ? 0
                                                  : parse_number(literal, "--param " + name);
        result.param_values.emplace_back(name, value);
        if (!option.expression.empty() && !declares_params(result.text)) {
            result.options.params.push_back(declare_param(name, literal, value));
        }
    }
}

template <typename Choice>
Choice parse_choice(const std::string& text, std::string_view option,
                    std::initializer_list<std::pair<std::string_view, Choice>> choices) {
    std::string expected;
    std::size_t left = choices.size();
    for (const auto& [name, choice] : choices) {
        if (text == name) {
            return choice;
        }
        --left;
        expected += formatted("{}{}", name, left > 1 ? ", " : left == 1 ? " or " : "");
    }
    fail_usage(formatted("{} '{}': expected {}", option, text, expected));
}

// A warning about the program carries its place; others say who speaks.
void write_log(void*, LogLevel level, std::string_view text) {
    if (level < LogLevel::warning) {
        return;
    }
    while (!text.empty() && text.back() == '\n') {
        text.remove_suffix(1);
    }
    const bool has_place = text.find(": warning: ") != std::string_view::npos;
    print(stderr, "{}{}\n", has_place ? "" : "flexc: warning: ", text);
}

} // namespace

void add_mod_options(CommandLine command, ModOption& option, bool with_params) {
    command.option("MOD", option.mod, "A file, - for stdin, or a mod of the library");
    command.option("-e,--expression", option.expression, "The program itself, instead of MOD");
    command.option("--mask", option.mask, "mask_mod, when the program has none");
    command.option("--sink", option.sink, "sink, when the program has none");
    command.option("--buffer", option.buffers,
                   "A buffer, when the program does not declare it: 'slopes: f32[H] grad'");
    if (with_params) {
        command.option("--param", option.params, "N=V: the value of a param");
    }
}

ModText load_mod(const ModOption& option) {
    if (option.mod.empty() == option.expression.empty()) {
        fail_usage(option.mod.empty() ? "a MOD or -e 'expression' is needed"
                                      : "MOD and -e exclude each other");
    }
    ModText result;
    if (!option.expression.empty()) {
        result.text = option.expression;
        result.options.source_name = "<expression>";
    } else if (option.mod == "-") {
        result.text = read_program(std::cin);
        result.options.source_name = "<stdin>";
    } else {
        load_named(option.mod, result);
        result.options.source_name = option.mod;
    }
    result.options.mask_mod = option.mask;
    result.options.sink = option.sink;
    for (const auto& text : option.buffers) {
        result.options.buffers.push_back(parse_buffer(text));
    }
    load_params(option, result);
    result.options.log.write = write_log;
    return result;
}

namespace {

// As people write them elsewhere, too: fp16, float32, torch.bfloat16.
bool parse_type(std::string_view text, DType& dtype) {
    if (text.starts_with("torch.")) {
        text.remove_prefix(6);
    }
    return parse_dtype(text, dtype) || parse_dtype(support::usual_type(text), dtype);
}

} // namespace

BufferDeclaration parse_buffer(const std::string& text) {
    static const std::regex kShape(
        R"(\s*([A-Za-z_]\w*)\s*:\s*([A-Za-z][\w.]*)\s*\[([^\]\[]*)\]\s*(grad)?\s*)");
    std::smatch match;
    BufferDeclaration declaration;
    if (!std::regex_match(text, match, kShape) || !parse_type(match[2].str(), declaration.type)) {
        fail_usage(formatted("--buffer '{}': expected NAME: TYPE[DIMS] or NAME: TYPE[DIMS] grad, "
                             "where TYPE is one of f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool",
                             text));
    }
    declaration.name = match[1];
    declaration.grad = match[4].matched;
    std::stringstream dims(match[3]);
    for (std::string dim; std::getline(dims, dim, ',');) {
        dim.erase(std::remove_if(dim.begin(), dim.end(), [](char c) { return c == ' '; }),
                  dim.end());
        declaration.dims.push_back(dim);
    }
    return declaration;
}

std::pair<std::string, std::string> split_assignment(const std::string& text,
                                                     std::string_view what) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
        fail_usage(formatted("{} '{}': expected NAME=VALUE", what, text));
    }
    return {text.substr(0, equals), text.substr(equals + 1)};
}

double parse_number(const std::string& text, std::string_view what) {
    double value = 0;
    const bool is_signed = text.starts_with('+') && !text.starts_with("+-");
    const char* const begin = text.data() + (is_signed ? 1 : 0);
    const char* const end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(begin, end, value);
    if (problem == std::errc::result_out_of_range) {
        fail_usage(formatted("{}: {} is beyond what a number can be", what, text));
    }
    if (problem != std::errc() || stop != end || std::isnan(value)) {
        fail_usage(formatted("{}: '{}' is not a number", what, text));
    }
    return value;
}

DType parse_element_type(const std::string& text) {
    DType dtype = DType::f32;
    const bool known = parse_type(text, dtype);
    if (!known || (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16)) {
        fail_usage(formatted("--dtype '{}': expected f32, f16 or bf16", text));
    }
    return dtype;
}

DType parse_narrow_type(const std::string& text) {
    DType dtype = DType::f32;
    const bool known = parse_type(text, dtype);
    if (!known || (dtype != DType::e4m3 && dtype != DType::e5m2 && dtype != DType::i8)) {
        fail_usage(formatted("--kv-dtype '{}': expected e4m3, e5m2 or i8", text));
    }
    return dtype;
}

Device parse_device(const std::string& text) {
    static const std::regex kCuda("cuda(?::([0-9]{1,4}))?");
    std::smatch match;
    if (text == "auto") {
        return default_device();
    }
    if (text == "cpu") {
        return Device::cpu();
    }
    if (std::regex_match(text, match, kCuda)) {
        return Device::cuda(match[1].matched ? std::stoi(match[1]) : 0);
    }
    fail_usage(formatted("--device '{}': expected auto, cpu, cuda or cuda:N", text));
}

ForwardKernel parse_forward_kernel(const std::string& text) {
    return parse_choice<ForwardKernel>(text, "--forward-kernel",
                                       {{"auto", ForwardKernel::automatic},
                                        {"generic", ForwardKernel::generic},
                                        {"specialized", ForwardKernel::specialized}});
}

BackwardKernel parse_backward_kernel(const std::string& text) {
    return parse_choice<BackwardKernel>(text, "--backward-kernel",
                                        {{"auto", BackwardKernel::automatic},
                                         {"fused", BackwardKernel::fused},
                                         {"split", BackwardKernel::split},
                                         {"generic", BackwardKernel::generic},
                                         {"specialized", BackwardKernel::specialized}});
}

TileSource parse_tile_source(const std::string& text) {
    return parse_choice<TileSource>(text, "--mask-tiles",
                                    {{"auto", TileSource::automatic},
                                     {"ranges", TileSource::ranges},
                                     {"block-mask", TileSource::block_mask}});
}

GradientType parse_gradient_type(const std::string& text) {
    return parse_choice<GradientType>(
        text, "--gradient-type", {{"f32", GradientType::f32}, {"buffer", GradientType::buffer}});
}

OutputType parse_output_type(const std::string& text) {
    return parse_choice<OutputType>(text, "--output-type",
                                    {{"input", OutputType::input}, {"f32", OutputType::f32}});
}

std::string describe(Device device) {
    return device.kind == Device::Kind::cuda ? formatted("cuda:{}", device.index) : "cpu";
}

Signature signature_of(const ModText& mod) {
    auto signature = value_of(check(mod.text, mod.options));
    std::vector<std::string> names;
    for (const auto& param : signature.params) {
        names.push_back(param.name);
    }
    for (const auto& [param, value] : mod.param_values) {
        if (std::find(names.begin(), names.end(), param) != names.end()) {
            continue;
        }
        const auto nearest = nearest_name(param, names);
        fail(formatted("--param {}: the program has no param of this name{}", param,
                       nearest.empty() ? "" : formatted(" (did you mean '{}'?)", nearest)));
    }
    return signature;
}

} // namespace flexc::cli
