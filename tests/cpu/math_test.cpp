// The bounds that math_*.ll.in state, over bit patterns, as vectorised code computes them.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/backend/flush_denormals.h"
#include "cpu/loader.h"
#include "hostile_reals.h"
#include "support/embedded.h"

using namespace flexc;

namespace {

constexpr std::size_t kCount = 4096;

// Loops over arrays around one function each, compiled as mods are.
class Functions {
  public:
    Functions() {
        std::string text;
        for (const embedded::EmbeddedFile& file : embedded::cpu_math())
            text += file.text;
        text += loops();
        auto found = cpu::backend();
        INFO((found ? std::string() : found.error().message));
        REQUIRE(found.has_value());
        table_ = (*found)->table;
        std::string error;
        module_ = table_->compile(text.data(), text.size(), {}, {}, {append, &error});
        INFO(error);
        REQUIRE(module_ != nullptr);
    }
    ~Functions() { table_->release(module_); }
    Functions(const Functions&) = delete;
    Functions& operator=(const Functions&) = delete;

    void run(const std::string& name, const void* x, const void* y, void* out) const {
        using Loop = void (*)(const void*, const void*, void*);
        auto loop = reinterpret_cast<Loop>(table_->find(module_, ("loop_" + name).c_str()));
        const bool found = loop != nullptr;
        REQUIRE(found);
        loop(x, y, out);
    }

    void apply(const ir::OpInfo& info, const std::array<std::vector<float>, 3>& operands,
               std::vector<float>& out) const {
        using Loop = void (*)(const float*, const float*, const float*, float*);
        const std::string name = "loop_op_" + std::string(info.name);
        auto loop = reinterpret_cast<Loop>(table_->find(module_, name.c_str()));
        const bool found = loop != nullptr;
        REQUIRE(found);
        loop(operands[0].data(), operands[1].data(), operands[2].data(), out.data());
    }

    static const std::vector<std::string>& unary() {
        static const std::vector<std::string> kNames = {
            "exp",         "exp2",        "expm1",       "log",   "log2",        "log1p", "tanh",
            "sigmoid",     "softplus",    "erf",         "rsqrt", "sin",         "cos",   "tan",
            "bounded_sin", "bounded_cos", "bounded_tan", "sign",  "softmax_exp2"};
        return kNames;
    }

  private:
    static void append(void* user, const char* data, std::size_t size) {
        static_cast<std::string*>(user)->append(data, size);
    }

    // Of an operator over reals: its text, with three operands that it may use.
    static std::string operator_loop(const ir::OpInfo& info) {
        std::string text;
        for (std::size_t i = 0; i < info.llvm.size(); ++i)
            text += info.llvm[i] == '$' ? std::string("%") + info.llvm[++i] + "v"
                                        : std::string(1, info.llvm[i]);
        std::string loads;
        for (const char* name : {"x", "y", "z"})
            loads += std::string("  %") + name + "p = getelementptr float, ptr %" + name +
                     ", i64 %i\n  %" + name + "v = load float, ptr %" + name + "p\n";
        return "define void @loop_op_" + std::string(info.name) +
               "(ptr noalias %x, ptr noalias %y, ptr noalias %z, ptr noalias %out) {\n"
               "entry:\n  br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %next, %loop ]\n" +
               loads + "  %r = " + text +
               "\n  %op = getelementptr float, ptr %out, i64 %i\n  store float %r, ptr %op\n"
               "  %next = add nuw nsw i64 %i, 1\n  %done = icmp eq i64 %next, " +
               std::to_string(kCount) +
               "\n  br i1 %done, label %exit, label %loop\nexit:\n  ret void\n}\n";
    }

    static std::string loop(const std::string& name, const std::string& call,
                            const std::string& in_type, const std::string& out_type) {
        return "define void @loop_" + name +
               "(ptr noalias %x, ptr noalias %y, ptr noalias %out) {\n"
               "entry:\n  br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %next, %loop ]\n"
               "  %xp = getelementptr " +
               in_type + ", ptr %x, i64 %i\n  %a = load " + in_type +
               ", ptr %xp\n  %yp = getelementptr " + in_type + ", ptr %y, i64 %i\n  %b = load " +
               in_type + ", ptr %yp\n  %r = call " + out_type + " @flexc_" + call +
               "\n  %op = getelementptr " + out_type + ", ptr %out, i64 %i\n  store " + out_type +
               " %r, ptr %op\n  %next = add nuw nsw i64 %i, 1\n  %done = icmp eq i64 %next, " +
               std::to_string(kCount) +
               "\n  br i1 %done, label %exit, label %loop\nexit:\n  ret void\n}\n";
    }

    static std::string loops() {
        std::string text = "define void @flexc_forward() {\n  ret void\n}\n";
        for (const std::string& name : unary())
            text += loop(name, name + "(float %a)", "float", "float");
        for (const char* name : {"pow", "modulo", "floor_div", "min", "max"})
            text += loop(name, std::string(name) + "(float %a, float %b)", "float", "float");
        for (const char* type : {"i32", "i64"}) {
            const std::string t = type;
            for (const char* name :
                 {"floor_divide", "floor_modulo", "integer_power", "shift_left", "shift_right"}) {
                const std::string full = std::string(name) + "_" + t;
                text += loop(full, full + "(" + t + " %a, " + t + " %b)", t, t);
            }
            text += loop("to_int_" + t, "to_int_" + t + "(float %a)", "float", t);
            text += loop("sign_" + t, "sign_" + t + "(" + t + " %a)", t, t);
        }
        for (const ir::OpInfo& info : ir::all_operators())
            if (test::is_of_reals(info)) text += operator_loop(info);
        return text;
    }

    const cpu::BackendTable* table_ = nullptr;
    cpu::BackendModule* module_ = nullptr;
};

// Distance in units in the last place of the exact result.
double ulps(float got, double exact) {
    if (std::isnan(exact)) return std::isnan(got) ? 0 : 1e30;
    if (std::isnan(got)) return 1e30;
    const auto rounded = static_cast<float>(exact);
    if (std::isinf(rounded) || std::isinf(got)) {
        if (got == rounded) return 0;
        // Next to overflow, either side is within a unit.
        return std::abs(exact) > 3.4028e38 && std::signbit(got) == std::signbit(rounded) ? 1 : 1e30;
    }
    int exponent = 0;
    std::frexp(exact, &exponent);
    return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct Bound {
    const char* name;
    double ulps;
    std::function<double(double)> exact;
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
};

double softplus(double x) {
    return std::isnan(x) ? x : std::fmax(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

} // namespace

TEST_CASE("functions of one argument keep their bounds") {
    const Functions functions;
    const Bound bounds[] = {
        {"exp", 2, [](double x) { return std::exp(x); }},
        {"exp2", 2, [](double x) { return std::exp2(x); }},
        {"expm1", 3, [](double x) { return std::expm1(x); }},
        {"log", 2, [](double x) { return std::log(x); }},
        {"log2", 3, [](double x) { return std::log2(x); }},
        {"log1p", 3, [](double x) { return std::log1p(x); }},
        {"tanh", 4, [](double x) { return std::tanh(x); }},
        {"sigmoid", 4, [](double x) { return 1 / (1 + std::exp(-x)); }, -87},
        {"softplus", 4, softplus},
        {"erf", 3, [](double x) { return std::erf(x); }},
        {"rsqrt", 2, [](double x) { return 1 / std::sqrt(x); }},
        {"sin", 3, [](double x) { return std::sin(x); }},
        {"cos", 3, [](double x) { return std::cos(x); }},
        {"tan", 5, [](double x) { return std::tan(x); }},
        {"bounded_sin", 3, [](double x) { return std::sin(x); }, -0x1p50, 0x1p50},
        {"bounded_cos", 3, [](double x) { return std::cos(x); }, -0x1p50, 0x1p50},
        {"bounded_tan", 5, [](double x) { return std::tan(x); }, -0x1p50, 0x1p50},
        {"sign", 0, [](double x) { return (x > 0) - (x < 0) + 0.0; }},
        {"softmax_exp2", 2, [](double x) { return std::exp2(x); }, -126, 1},
    };
    std::vector<float> x(kCount), out(kCount);
    for (const Bound& bound : bounds) {
        CAPTURE(bound.name);
        double worst = 0;
        float at = 0;
        // Every 1021st bit pattern: all exponents, both signs, NaN and inf.
        for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32);) {
            for (float& value : x) {
                value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
                bits += 1021;
            }
            functions.run(bound.name, x.data(), x.data(), out.data());
            for (std::size_t i = 0; i < kCount; ++i) {
                if (x[i] < bound.low || x[i] > bound.high) continue;
                const double error = ulps(out[i], bound.exact(x[i]));
                if (error > worst) {
                    worst = error;
                    at = x[i];
                }
            }
        }
        CAPTURE(at);
        CHECK(worst <= bound.ulps);
    }
}

TEST_CASE("edges of functions of one argument") {
    const Functions functions;
    constexpr float kInf = std::numeric_limits<float>::infinity();
    std::vector<float> x(kCount, 0), out(kCount);
    const float edges[] = {0.0f,
                           -0.0f,
                           kInf,
                           -kInf,
                           1e-45f,
                           -1e-45f,
                           -1.0f,
                           -200.0f,
                           200.0f,
                           1e30f,
                           std::numeric_limits<float>::quiet_NaN()};
    std::copy(std::begin(edges), std::end(edges), x.begin());
    auto at = [&](const char* name, std::size_t i) {
        functions.run(name, x.data(), x.data(), out.data());
        return out[i];
    };
    CHECK(at("exp", 3) == 0);
    CHECK(at("exp", 2) == kInf);
    CHECK(at("log", 0) == -kInf);
    CHECK(std::isnan(at("log", 6)));
    CHECK(at("log1p", 6) == -kInf);
    CHECK(at("tanh", 3) == -1);
    CHECK(at("erf", 2) == 1);
    CHECK(at("sigmoid", 7) < 1e-38f);
    CHECK(at("softplus", 8) == 200);
    CHECK(std::signbit(at("tanh", 1)));
    CHECK(at("softmax_exp2", 3) == 0);
    CHECK(at("softmax_exp2", 7) == 0);
    for (const std::string& name : Functions::unary())
        if (name != "sign") CHECK(std::isnan(at(name.c_str(), 10)));
    CHECK(at("sign", 10) == 0);
}

TEST_CASE("sine and cosine of the floats nearest to multiples of pi/2") {
    const Functions functions;
    std::vector<float> x(kCount, 1), out(kCount);
    const float nearest[] = {0x1.f37c8ap95f, 0x1.47d0fep34f, 0x1.f37c8ap96f, 0x1.47d0fep35f,
                             0x1.f37c8ap97f, 0x1.32ede2p85f, 0x1.628d4cp40f, 0x1.13093p76f};
    std::copy(std::begin(nearest), std::end(nearest), x.begin());
    for (const bool sine : {true, false}) {
        functions.run(sine ? "sin" : "cos", x.data(), x.data(), out.data());
        for (std::size_t i = 0; i < std::size(nearest); ++i) {
            CAPTURE(x[i]);
            CHECK(ulps(out[i], sine ? std::sin(double{x[i]}) : std::cos(double{x[i]})) <= 3);
        }
    }
}

TEST_CASE("operators of hostile reals stay in their intervals, with and without denormals") {
    const Functions functions;
    test::HostilePoints points(test::first_seed());
    std::vector<test::HostilePoint> chosen(kCount);
    std::array<std::vector<float>, 3> operands;
    operands.fill(std::vector<float>(kCount));
    std::vector<float> out(kCount);
    for (std::size_t op = 0; op < ir::all_operators().size(); ++op) {
        const ir::OpInfo& info = ir::all_operators()[op];
        if (!test::is_of_reals(info)) continue;
        for (int round = 0; round < test::trials(16); ++round) {
            for (std::size_t i = 0; i < kCount; ++i) {
                chosen[i] = points.next(info.arity());
                for (std::size_t j = 0; j < 3; ++j)
                    operands[j][i] = chosen[i].operands[j];
            }
            if (round % 2 == 0) {
                const cpu::FlushDenormals flush;
                functions.apply(info, operands, out);
            } else {
                functions.apply(info, operands, out);
            }
            for (std::size_t i = 0; i < kCount; ++i)
                test::check_contained(static_cast<ir::Op>(op), chosen[i], out[i]);
        }
    }
}

TEST_CASE("functions of two arguments") {
    const Functions functions;
    std::mt19937 engine(7);
    std::vector<float> x(kCount), y(kCount), out(kCount);
    double pow_error = 0, modulo_error = 0, floor_error = 0;
    for (int round = 0; round < 200; ++round) {
        for (std::size_t i = 0; i < kCount; ++i) {
            x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
            y[i] = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
            if (i % 2 == 0)
                y[i] = static_cast<float>(static_cast<int>(engine() % 2001) - 1000) / 16;
            if (i % 4 == 0)
                x[i] = static_cast<float>(static_cast<int>(engine() % 2001) - 1000) / 64;
            if (i % 8 == 0) y[i] = std::round(y[i]);
        }
        functions.run("pow", x.data(), y.data(), out.data());
        for (std::size_t i = 0; i < kCount; ++i)
            pow_error = std::max(pow_error, ulps(out[i], std::pow(double{x[i]}, double{y[i]})));
        functions.run("modulo", x.data(), y.data(), out.data());
        for (std::size_t i = 0; i < kCount; ++i) {
            if (std::abs(double{x[i]} / y[i]) >= 0x1p52) continue;
            double exact = std::fmod(double{x[i]}, double{y[i]});
            if (exact != 0 && (exact < 0) != (y[i] < 0)) exact += y[i];
            modulo_error = std::max(modulo_error, ulps(out[i], exact));
        }
        functions.run("floor_div", x.data(), y.data(), out.data());
        for (std::size_t i = 0; i < kCount; ++i)
            floor_error = std::max(floor_error, ulps(out[i], std::floor(double{x[i]} / y[i])));
    }
    CHECK(pow_error <= 1);
    CHECK(modulo_error <= 1);
    CHECK(floor_error <= 1);

    const float values[] = {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            2.5f,
                            -2.5f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            3.0f,
                            -3.0f,
                            0.5f};
    std::size_t count = 0;
    for (float a : values)
        for (float b : values) {
            x[count] = a;
            y[count++] = b;
        }
    functions.run("pow", x.data(), y.data(), out.data());
    for (std::size_t i = 0; i < count; ++i) {
        CAPTURE(x[i]);
        CAPTURE(y[i]);
        const float exact = std::pow(x[i], y[i]);
        CHECK((std::isnan(exact) ? std::isnan(out[i]) : out[i] == exact));
        CHECK((std::isnan(exact) || std::signbit(out[i]) == std::signbit(exact)));
    }
    for (const char* name : {"min", "max"}) {
        functions.run(name, x.data(), y.data(), out.data());
        for (std::size_t i = 0; i < count; ++i) {
            const bool nan = std::isnan(x[i]) || std::isnan(y[i]);
            CHECK(std::isnan(out[i]) == nan);
            if (!nan)
                CHECK(out[i] == (name[1] == 'i' ? std::fmin(x[i], y[i]) : std::fmax(x[i], y[i])));
        }
    }
}

namespace {

template <typename T> T floor_divide(T x, T y) {
    if (y == 0) return 0;
    const T quotient = x / y;
    return x % y != 0 && (x % y < 0) != (y < 0) ? quotient - 1 : quotient;
}
template <typename T> T power(T x, T y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;
    std::make_unsigned_t<T> result = 1;
    for (T i = 0; i < y; ++i)
        result *= static_cast<std::make_unsigned_t<T>>(x);
    return static_cast<T>(result);
}

template <typename T> void check_integers(const Functions& functions, const std::string& type) {
    std::mt19937_64 engine(11);
    std::vector<T> x(kCount), y(kCount), out(kCount);
    constexpr T kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
    constexpr int kBits = static_cast<int>(sizeof(T) * 8);
    for (std::size_t i = 0; i < kCount; ++i) {
        x[i] = static_cast<T>(engine()) >> static_cast<int>(engine() % kBits);
        y[i] = static_cast<T>(engine()) >> static_cast<int>(engine() % kBits);
        if (i % 16 == 0) y[i] = 0;
        if (i % 16 == 1) x[i] = i % 32 == 1 ? kLow : kHigh;
        // The one quotient that does not fit.
        if (x[i] == kLow && y[i] == -1) y[i] = 1;
    }
    auto compare = [&](const std::string& name, auto&& expected) {
        functions.run(name + "_" + type, x.data(), y.data(), out.data());
        for (std::size_t i = 0; i < kCount; ++i) {
            CAPTURE(name);
            CAPTURE(x[i]);
            CAPTURE(y[i]);
            REQUIRE(out[i] == expected(x[i], y[i]));
        }
    };
    compare("floor_divide", floor_divide<T>);
    compare("floor_modulo", [](T a, T b) -> T {
        return b == 0 ? 0 : a % b != 0 && (a % b < 0) != (b < 0) ? a % b + b : a % b;
    });
    compare("sign", [](T a, T) -> T { return (a > 0) - (a < 0); });
    for (std::size_t i = 0; i < kCount; ++i)
        y[i] = static_cast<T>(engine() % 100) - 20;
    compare("integer_power", power<T>);
    compare("shift_left", [](T a, T b) -> T {
        return b < 0 || b >= kBits ? 0
                                   : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << b);
    });
    compare("shift_right", [](T a, T b) -> T {
        return b < 0 || b >= kBits ? (a < 0 ? -1 : 0) : static_cast<T>(a >> b);
    });
    std::vector<float> reals(kCount, 0);
    const float edges[] = {1.9f,
                           -1.9f,
                           1e30f,
                           -1e30f,
                           std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::infinity(),
                           16777216.0f};
    const T expected[] = {1, -1, kHigh, kLow, 0, kHigh, 16777216};
    std::copy(std::begin(edges), std::end(edges), reals.begin());
    functions.run("to_int_" + type, reals.data(), reals.data(), out.data());
    for (std::size_t i = 0; i < std::size(expected); ++i)
        CHECK(out[i] == expected[i]);
}

} // namespace

TEST_CASE("integer helpers") {
    const Functions functions;
    check_integers<std::int32_t>(functions, "i32");
    check_integers<std::int64_t>(functions, "i64");
}
