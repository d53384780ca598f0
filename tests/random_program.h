// Random programs, data for them, and points to evaluate them at. All from a seed, the same on
// every machine. Values are exact in f32, f16 and bf16, so that every backend starts from the same
// numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include "ir/interp.h"
#include "ir/program.h"
#include "random.h"

namespace flexc::test {

// The first seed of a random test; FLEXC_TEST_SEED sets another.
inline std::uint64_t first_seed() {
    const char* text = std::getenv("FLEXC_TEST_SEED");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

// How often a random test tries. Under sanitizers each try takes ten to thirty times as long.
constexpr int trials(int count) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return count / 4;
#else
    return count;
#endif
}
// The seeds of that many tries.
inline auto seeds(int count) {
    const std::uint64_t first = first_seed();
    return std::views::iota(first, first + static_cast<std::uint64_t>(trials(count)));
}

struct RandomOptions {
    int operators = 30;       // how many are drawn
    bool buffers = true;      // reads of captured buffers
    bool gradients = true;    // some of the buffers want gradients
    bool params = true;       // run-time parameters
    bool integers = true;     // integer arithmetic on b, h, q_idx, kv_idx, sizes
    bool kinks = true;        // abs, min, max, clamp, real comparisons and what they select
    bool steps = true;        // floor and its kind, sign, modulo, real to integer
    bool mask = true;         // else everything is visible
    bool sinks = true;        // some programs have one
    bool wild_reads = true;   // indices that may be outside
    bool score_reads = false; // indices that follow from the score, the same in any precision
    bool places = false;      // indices by distances, parts and kinds of positions, some clamped
    bool sums = true;         // over a counter
    bool sized_sums = true;   // up to a size
    bool cuts = false;        // choices of zero below functions with poles, and ties
    bool tame = true;         // keeps reals finite and moderate; integers may still be large
};

class ProgramGenerator {
  public:
    ProgramGenerator(std::uint64_t seed, const RandomOptions& options)
        : random_(seed), options_(options), graph_(program_.graph) {}

    ir::Program generate() {
        declare();
        seed_pools();
        for (int i = 0; i < options_.operators; ++i)
            draw();
        // Roots use many of the nodes, and the score itself.
        ir::NodeId score = ambient(ir::Op::score);
        for (int i = 0; i < 3; ++i)
            score = apply(ir::Op::fadd, {score, settled(recent(reals_))});
        program_.score = score;
        program_.mask = options_.mask ? mask() : graph_.boolean(true);
        if (options_.sinks && random_.chance(50)) program_.sink = sink();
        return std::move(program_);
    }

  private:
    using NodeId = ir::NodeId;
    using Op = ir::Op;
    using Pool = std::vector<NodeId>;

    void declare() {
        program_.sizes.push_back("N");
        constexpr std::uint32_t kN = ir::kStandardSizes;
        if (options_.params) {
            program_.params.push_back({.name = "cap", .default_value = 1.5});
            program_.params.push_back(
                {.name = "window", .type = ir::Type::integer, .default_value = 3});
            program_.params.push_back(
                {.name = "flag", .type = ir::Type::boolean, .default_value = 1});
        }
        if (!options_.buffers) return;
        auto add = [&](std::string name, DType dtype, std::vector<ir::Dim> dims, bool grad) {
            program_.buffers.push_back(
                {std::move(name), dtype, std::move(dims), grad && options_.gradients, {}});
        };
        add("slopes", DType::f32, {{.size = ir::kH}}, true);
        add("rel", DType::bf16, {{.size = ir::kB}, {.size = ir::kQLen}, {.constant = 5}}, true);
        add("table", DType::f16, {{.size = kN}, {.size = ir::kHKv}}, true);
        add("bias", DType::f32, {{.size = ir::kQLen}, {.size = ir::kKvLen}}, true);
        add("gain", DType::f64, {}, false);
        add("doc", DType::i32, {{.size = ir::kKvLen}}, false);
        add("offset", DType::i64, {{.size = ir::kQLen}}, false);
        add("small", DType::i8, {{.constant = 4}}, false);
        add("bytes", DType::u8, {{.constant = 3}, {.size = kN}}, false);
        add("keep", DType::boolean, {{.size = ir::kB}, {.size = ir::kKvLen}}, false);
        if (!options_.places) return;
        add("grid", DType::f32, {{.constant = 4}, {.size = kN}, {.size = ir::kH}}, true);
        kind_of_query_ = static_cast<std::uint32_t>(program_.buffers.size());
        add("q_kind", DType::i32, {{.size = ir::kQLen}}, false);
        add("kv_kind", DType::u8, {{.size = ir::kKvLen}}, false);
    }

    void seed_pools() {
        reals_ = {ambient(Op::score), graph_.real(0.5), graph_.real(-1.25), graph_.real(2)};
        integers_ = {graph_.integer(1), graph_.integer(3)};
        for (Op op : {Op::b, Op::h, Op::h_kv, Op::q_idx, Op::kv_idx})
            integers_.push_back(ambient(op));
        for (std::uint32_t size : {ir::kH, ir::kQLen, ir::kKvLen, ir::kStandardSizes})
            integers_.push_back(graph_.size_of(size));
        booleans_ = {apply(Op::ile, {ambient(Op::kv_idx), ambient(Op::q_idx)})};
        for (std::uint32_t i = 0; i < program_.params.size(); ++i) {
            const ir::Type type = program_.params[i].type;
            pool(type).push_back(graph_.param(i, type));
        }
    }

    Pool& pool(ir::Type type) {
        return type == ir::Type::real ? reals_ : type == ir::Type::integer ? integers_ : booleans_;
    }
    NodeId recent(const Pool& from) {
        const std::size_t half = from.size() / 2;
        return random_.chance(50)
                   ? random_.pick(from)
                   : from[half + static_cast<std::size_t>(random_.integer(
                                     0, static_cast<std::int64_t>(from.size() - half - 1)))];
    }
    NodeId ambient(Op op) { return graph_.ambient(op); }
    NodeId apply(Op op, std::vector<NodeId> operands) {
        return graph_.apply(op, std::move(operands));
    }

    // A real of moderate size.
    NodeId settled(NodeId x) { return options_.tame ? apply(Op::tanh, {x}) : x; }
    NodeId positive(NodeId x) {
        if (!options_.tame) return x;
        return apply(Op::fadd, {apply(Op::fmul, {settled(x), settled(x)}), graph_.real(0.5)});
    }

    bool allowed(Op op) const {
        const std::string_view signature = ir::info(op).signature;
        if (!options_.integers && signature.find('i') != std::string_view::npos) return false;
        switch (op) {
        case Op::fabs:
        case Op::fmin:
        case Op::fmax:
        case Op::fclamp: return options_.kinks;
        case Op::flt:
        case Op::fle:
        case Op::feq:
        case Op::fne: return options_.kinks && options_.steps;
        case Op::fmod:
        case Op::ffloordiv:
        case Op::fsign:
        case Op::ffloor:
        case Op::fceil:
        case Op::fround:
        case Op::ftrunc:
        case Op::real_to_int: return options_.steps;
        default: return true;
        }
    }

    // Zeros that rules choose, below functions whose slope is infinite there.
    void draw_cut() {
        const NodeId zero = graph_.real(0), x = recent(reals_), y = recent(reals_);
        const NodeId condition = apply(Op::fle, {x, zero});
        const NodeId relu = apply(Op::fselect, {condition, zero, x});
        const NodeId half = graph_.real(0.5);
        const std::array<NodeId, 8> zeros = {
            relu,
            apply(Op::fselect, {recent(booleans_), relu, zero}),
            apply(Op::fclamp, {x, zero, graph_.real(2)}),
            apply(Op::fclamp, {x, half, half}),
            apply(Op::fclamp, {x, settled(y), settled(y)}),
            apply(Op::fadd, {relu, apply(Op::fselect, {recent(booleans_), zero, relu})}),
            apply(Op::fmax, {zero, apply(Op::fmul, {x, half})}),
            apply(Op::fmul, {relu, apply(Op::fabs, {settled(y)})})};
        const NodeId value = random_.pick(zeros);
        const std::array<NodeId, 7> poles = {
            value,
            value,
            apply(Op::sqrt, {value}),
            apply(Op::sqrt, {apply(Op::fabs, {value})}),
            apply(Op::pow, {value, graph_.real(0.25)}),
            apply(Op::fmul, {settled(y), apply(Op::sqrt, {value})}),
            apply(Op::fmin, {graph_.real(4), apply(Op::rsqrt, {value})})};
        reals_.push_back(random_.pick(poles));
    }

    void draw() {
        if (options_.cuts && random_.chance(20)) return draw_cut();
        if (options_.sums && !is_in_sum_ && random_.chance(6)) return draw_sum();
        if (!program_.buffers.empty() && random_.chance(20)) return draw_read();
        const auto operators = ir::all_operators();
        Op op{};
        do
            op = static_cast<Op>(
                random_.integer(0, static_cast<std::int64_t>(operators.size()) - 1));
        while (ir::info(op).is_leaf() || !allowed(op));
        std::vector<NodeId> operands;
        const std::string_view signature = ir::info(op).signature;
        for (int i = 0; i < ir::info(op).arity(); ++i)
            operands.push_back(
                recent(pool(ir::type_of_letter(signature[static_cast<std::size_t>(i)]))));
        if (options_.tame) restrict_domain(op, operands);
        const NodeId id = apply(op, std::move(operands));
        pool(graph_[id].type).push_back(id);
    }

    void restrict_domain(Op op, std::vector<NodeId>& operands) {
        switch (op) {
        case Op::log:
        case Op::log2:
        case Op::log1p:
        case Op::sqrt:
        case Op::rsqrt: operands[0] = positive(operands[0]); break;
        case Op::pow:
            operands[0] = positive(operands[0]);
            operands[1] = settled(operands[1]);
            break;
        case Op::fdiv:
        case Op::fmod:
        case Op::ffloordiv: operands[1] = positive(operands[1]); break;
        case Op::exp:
        case Op::exp2:
        case Op::expm1:
        case Op::tan: operands[0] = settled(operands[0]); break;
        case Op::fmul:
        case Op::fma: operands[1] = settled(operands[1]); break;
        case Op::int_to_real:
            operands[0] = apply(Op::imod, {operands[0], graph_.integer(17)});
            break;
        case Op::real_to_int:
            operands[0] = apply(Op::fmul, {settled(operands[0]), graph_.real(9)});
            break;
        default: break;
        }
    }

    // What is drawn for the term stays inside of it.
    void draw_sum() {
        const std::int64_t begin = random_.integer(-1, 1);
        const NodeId first = graph_.integer(begin);
        const NodeId end = options_.sized_sums && random_.chance(25)
                               ? graph_.size_of(random_.chance(50) ? ir::kStandardSizes : ir::kQLen)
                               : graph_.integer(begin + random_.integer(0, 5));
        const NodeId counter = graph_.counter(first, end);
        const Pool reals = reals_, integers = integers_, booleans = booleans_;
        integers_.insert(integers_.end(), 5, counter);
        is_in_sum_ = true;
        for (int i = 0; i < 6; ++i) {
            draw();
            if (!program_.buffers.empty()) draw_read();
        }
        is_in_sum_ = false;
        const NodeId of_counter = apply(Op::imod, {recent(integers_), graph_.integer(17)});
        const bool real = random_.chance(70);
        const NodeId term = real ? settled(recent(reals_)) : of_counter;
        reals_ = reals;
        integers_ = integers;
        booleans_ = booleans;
        pool(real ? ir::Type::real : ir::Type::integer).push_back(graph_.sum(counter, term));
    }

    void draw_read() {
        const auto buffer = static_cast<std::uint32_t>(
            random_.integer(0, static_cast<std::int64_t>(program_.buffers.size()) - 1));
        const ir::Type type = ir::type_of(program_.buffers[buffer].dtype);
        if (!options_.integers && type == ir::Type::integer) return;
        std::vector<NodeId> indices;
        for (const ir::Dim& dim : program_.buffers[buffer].dims)
            indices.push_back(index(dim));
        const NodeId id = graph_.read(buffer, type, std::move(indices));
        pool(type).push_back(id);
    }

    NodeId extent_of(const ir::Dim& dim) {
        return dim.is_constant() ? graph_.integer(dim.constant) : graph_.size_of(dim.size);
    }

    // How far a query is from a key, in elements or in blocks of them, or what kind one of them is.
    NodeId place() {
        const NodeId q = ambient(Op::q_idx), kv = ambient(is_in_sink_ ? Op::h : Op::kv_idx);
        const NodeId block = graph_.integer(random_.integer(2, 3));
        const auto in_blocks = [&](NodeId x) { return apply(Op::ifloordiv, {x, block}); };
        switch (random_.integer(0, 4)) {
        case 0: return apply(Op::isub, {q, kv});
        case 1: return apply(Op::isub, {kv, q});
        case 2: return apply(Op::iabs, {apply(Op::isub, {q, kv})});
        case 3: return apply(Op::isub, {in_blocks(q), in_blocks(kv)});
        default: break;
        }
        const bool of_query = is_in_sink_ || random_.chance(50);
        return graph_.read(of_query ? kind_of_query_ : kind_of_query_ + 1, ir::Type::integer,
                           {of_query ? q : kv});
    }
    NodeId index_of_place(NodeId extent) {
        const NodeId shift = graph_.integer(random_.integer(0, 6));
        const NodeId shifted = apply(Op::iadd, {place(), shift});
        if (options_.wild_reads && random_.chance(40)) return shifted;
        const NodeId last = apply(Op::isub, {extent, graph_.integer(1)});
        return apply(Op::imin, {apply(Op::imax, {shifted, graph_.integer(0)}), last});
    }

    NodeId index(const ir::Dim& dim) {
        if (options_.places && options_.integers && random_.chance(30))
            return index_of_place(extent_of(dim));
        if (options_.wild_reads && options_.integers && random_.chance(25))
            return recent(integers_);
        if (!dim.is_constant() && random_.chance(60)) {
            switch (dim.size) {
            case ir::kB: return ambient(Op::b);
            case ir::kH: return ambient(Op::h);
            case ir::kHKv: return ambient(Op::h_kv);
            case ir::kQLen: return ambient(Op::q_idx);
            case ir::kKvLen:
                if (is_in_sink_) break;
                return ambient(Op::kv_idx);
            default: break;
            }
        }
        const NodeId extent = extent_of(dim);
        if (options_.score_reads && !is_in_sink_ && random_.chance(30)) {
            const NodeId four_times = apply(Op::fmul, {ambient(Op::score), graph_.real(4)});
            return apply(Op::imod, {apply(Op::real_to_int, {four_times}), extent});
        }
        const NodeId any = options_.integers ? recent(integers_)
                           : is_in_sink_     ? ambient(Op::q_idx)
                                             : ambient(Op::kv_idx);
        return apply(Op::imod, {any, extent});
    }

    // Of what is the same for a whole row.
    NodeId sink() {
        is_in_sink_ = true;
        seed_pools();
        std::erase(reals_, ambient(Op::score));
        std::erase(integers_, ambient(Op::kv_idx));
        booleans_ = {apply(Op::ile, {ambient(Op::q_idx), ambient(Op::h)})};
        for (int i = 0; i < 8; ++i) {
            draw();
            if (!program_.buffers.empty()) draw_read();
        }
        const NodeId sum = apply(Op::fadd, {settled(recent(reals_)), settled(recent(reals_))});
        return apply(Op::fmul, {sum, graph_.real(1.5)});
    }

    // The language lets a mask use neither the score nor a grad buffer. Passes take masks of
    // scores, kernels do not.
    bool suits_mask(NodeId root) const {
        for (NodeId id : ir::reachable(graph_, std::span(&root, 1)))
            if ((graph_[id].op == Op::read && program_.buffers[graph_[id].symbol].grad) ||
                (options_.score_reads && graph_[id].op == Op::score))
                return false;
        return true;
    }

    NodeId mask() {
        Pool candidates;
        for (NodeId id : booleans_)
            if (suits_mask(id)) candidates.push_back(id);
        return apply(random_.chance(50) ? Op::band : Op::bor,
                     {random_.pick(candidates), random_.pick(candidates)});
    }

    Random random_;
    RandomOptions options_;
    ir::Program program_;
    ir::Graph& graph_;
    Pool reals_, integers_, booleans_;
    std::uint32_t kind_of_query_ = 0; // the buffer; that of keys follows it
    bool is_in_sum_ = false, is_in_sink_ = false;
};

inline ir::Program random_program(std::uint64_t seed, const RandomOptions& options = {}) {
    return ProgramGenerator(seed, options).generate();
}

// Sizes, parameters and buffer contents for a program, and an environment that points to them.
class Instance {
  public:
    Instance(const ir::Program& program, std::uint64_t seed) : random_(seed) {
        std::vector<std::int64_t> sizes;
        for (std::size_t i = 0; i < program.sizes.size(); ++i)
            sizes.push_back(random_.integer(1, 7));
        sizes[ir::kH] = sizes[ir::kHKv] * random_.integer(1, 3);
        sizes[ir::kD] = 16;
        sizes[ir::kDv] = 16;
        environment_.sizes = std::move(sizes);
        for (const ir::Param& param : program.params)
            environment_.params.push_back(
                {.boolean = random_.chance(50),
                 .integer = random_.integer(-2, 9),
                 .real = param.type == ir::Type::real ? random_.real() : 0.0});
        for (const ir::Buffer& buffer : program.buffers)
            fill(buffer);
        for (const auto& data : buffers_)
            environment_.buffers.push_back(data.get());
        move();
    }

    // To another point inside the sizes.
    void move() {
        auto below = [&](std::uint32_t size) {
            return random_.integer(0, environment_.sizes[size] - 1);
        };
        environment_.b = below(ir::kB);
        environment_.h = below(ir::kH);
        environment_.h_kv =
            environment_.h / (environment_.sizes[ir::kH] / environment_.sizes[ir::kHKv]);
        environment_.q_idx = below(ir::kQLen);
        environment_.kv_idx = below(ir::kKvLen);
        environment_.score = random_.real();
    }

    ir::Environment& environment() { return environment_; }
    ir::BufferData& buffer(std::size_t index) { return *buffers_[index]; }

  private:
    void fill(const ir::Buffer& buffer) {
        auto data = std::make_unique<ir::BufferData>();
        std::int64_t elements = 1;
        for (const ir::Dim& dim : buffer.dims) {
            data->extents.push_back(dim.is_constant() ? dim.constant
                                                      : environment_.sizes[dim.size]);
            elements *= data->extents.back();
        }
        for (std::int64_t i = 0; i < elements; ++i) {
            if (ir::type_of(buffer.dtype) == ir::Type::real)
                data->reals.push_back(random_.real());
            else if (buffer.dtype == DType::boolean)
                data->integers.push_back(random_.integer(0, 1));
            else
                data->integers.push_back(random_.integer(buffer.dtype == DType::u8 ? 0 : -2, 9));
        }
        buffers_.push_back(std::move(data));
    }

    Random random_;
    ir::Environment environment_;
    std::vector<std::unique_ptr<ir::BufferData>> buffers_;
};

} // namespace flexc::test
