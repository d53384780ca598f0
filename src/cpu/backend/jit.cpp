// The only file that includes LLVM.
#include "cpu/backend/jit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>

#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Metadata.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PassInstrumentation.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

namespace flexc::cpu {

namespace {

namespace orc = llvm::orc;

#if LLVM_VERSION_MAJOR >= 18
constexpr auto kObjectFile = llvm::CodeGenFileType::ObjectFile;
constexpr auto kAggressive = llvm::CodeGenOptLevel::Aggressive;
constexpr auto kLess = llvm::CodeGenOptLevel::Less;
#else
constexpr auto kObjectFile = llvm::CGFT_ObjectFile;
constexpr auto kAggressive = llvm::CodeGenOpt::Aggressive;
constexpr auto kLess = llvm::CodeGenOpt::Less;
#endif

void initialize_target() {
    static std::once_flag once;
    std::call_once(once, [] {
        llvm::InitializeNativeTarget();
        llvm::InitializeNativeTargetAsmPrinter();
        llvm::InitializeNativeTargetAsmParser();
    });
}

// The x86-64 level of a processor by its features; "" on other architectures. LLVM orders sums by
// what it knows of a processor's speed: of a level it knows the same on every machine, so that
// machines of one level compute the same bits.
std::string level_of(const orc::JITTargetMachineBuilder& host) {
    if (host.getTargetTriple().getArch() != llvm::Triple::x86_64) return "";
    const std::vector<std::string>& features = host.getFeatures().getFeatures();
    const auto has = [&](std::initializer_list<const char*> names) {
        return std::ranges::all_of(names, [&](const char* name) {
            return std::ranges::find(features, std::string("+") + name) != features.end();
        });
    };
    if (!has({"cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"})) return "x86-64";
    if (!has({"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"})) return "x86-64-v2";
    return has({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}) ? "x86-64-v4"
                                                                            : "x86-64-v3";
}

llvm::Expected<orc::JITTargetMachineBuilder> host_builder() {
    initialize_target();
    auto builder = orc::JITTargetMachineBuilder::detectHost();
    if (builder) {
        if (const std::string level = level_of(*builder); !level.empty()) {
            builder->setCPU(level);
            builder->getFeatures() = llvm::SubtargetFeatures();
        }
        builder->setCodeGenOptLevel(kAggressive);
        builder->setRelocationModel(llvm::Reloc::PIC_);
    }
    return builder;
}

std::string text_of(llvm::Error error) { return llvm::toString(std::move(error)); }

// Functions that LLVM may call for operations without an instruction on this processor.
orc::SymbolMap runtime_symbols(orc::LLJIT& jit) {
    orc::SymbolMap symbols;
    auto add = [&](const char* name, auto* function) {
        const auto address = reinterpret_cast<std::uintptr_t>(function);
#if LLVM_VERSION_MAJOR >= 17
        symbols[jit.mangleAndIntern(name)] = {orc::ExecutorAddr(address),
                                              llvm::JITSymbolFlags::Exported};
#else
        symbols[jit.mangleAndIntern(name)] =
            llvm::JITEvaluatedSymbol(address, llvm::JITSymbolFlags::Exported);
#endif
    };
    using Unary = float (*)(float);
    using Unary64 = double (*)(double);
    add("memset", &std::memset);
    add("memcpy", &std::memcpy);
    add("memmove", &std::memmove);
    add("floorf", static_cast<Unary>(&::floorf));
    add("ceilf", static_cast<Unary>(&::ceilf));
    add("truncf", static_cast<Unary>(&::truncf));
    add("roundevenf", static_cast<Unary>([](float x) { return std::nearbyint(x); }));
    add("floor", static_cast<Unary64>(&::floor));
    add("roundeven", static_cast<Unary64>([](double x) { return std::nearbyint(x); }));
    add("fmaf", static_cast<float (*)(float, float, float)>(&::fmaf));
    add("fma", static_cast<double (*)(double, double, double)>(&::fma));
    return symbols;
}

class LinkedModule final : public JitModule {
  public:
    LinkedModule(std::unique_ptr<orc::LLJIT> jit, orc::ResourceTrackerSP tracker)
        : jit_(std::move(jit)), tracker_(std::move(tracker)) {}
    ~LinkedModule() override { llvm::consumeError(tracker_->remove()); }

    void* find(const char* name) const override {
        auto address = jit_->lookup(name);
        if (!address) {
            llvm::consumeError(address.takeError());
            return nullptr;
        }
        return address->toPtr<void*>();
    }

  private:
    std::unique_ptr<orc::LLJIT> jit_;
    orc::ResourceTrackerSP tracker_;
};

llvm::Expected<std::unique_ptr<JitModule>> link(std::unique_ptr<llvm::MemoryBuffer> object) {
    auto builder = host_builder();
    if (!builder) return builder.takeError();
    orc::LLJITBuilder jit_builder;
    jit_builder.setJITTargetMachineBuilder(std::move(*builder));
    // The code needs neither static constructors nor symbols of the process.
    jit_builder.setPlatformSetUp(orc::setUpInactivePlatform);
#if LLVM_VERSION_MAJOR >= 17
    jit_builder.setLinkProcessSymbolsByDefault(false);
#endif
    auto jit = jit_builder.create();
    if (!jit) return jit.takeError();
    // Errors that lookups report are returned to their callers as well.
    (*jit)->getExecutionSession().setErrorReporter(
        [](llvm::Error error) { llvm::consumeError(std::move(error)); });
    orc::JITDylib& library = (*jit)->getMainJITDylib();
    if (auto error = library.define(orc::absoluteSymbols(runtime_symbols(**jit)))) return error;
    auto tracker = library.createResourceTracker();
    if (auto error = (*jit)->addObjectFile(tracker, std::move(object))) return error;
    return std::make_unique<LinkedModule>(std::move(*jit), std::move(tracker));
}

// Prefers the widest vectors that the processor has: loops are long, and the matrix products use
// full width anyway.
void prefer_wide_vectors(llvm::Module& module, const llvm::TargetMachine& machine) {
    if (machine.getTargetCPU() != "x86-64-v4") return;
    for (llvm::Function& function : module)
        if (!function.isDeclaration()) function.addFnAttr("prefer-vector-width", "512");
}

// Instructions of a module once its calls are inlined: what the time of a compile follows.
std::size_t instructions_of(const llvm::Module& module) {
    std::map<const llvm::Function*, std::size_t> known;
    const std::function<std::size_t(const llvm::Function&)> count =
        [&](const llvm::Function& function) {
            const auto [entry, is_new] = known.try_emplace(&function, 1);
            if (!is_new) return entry->second;
            std::size_t sum = 1;
            for (const llvm::BasicBlock& block : function)
                for (const llvm::Instruction& instruction : block) {
                    const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
                    const llvm::Function* callee = call ? call->getCalledFunction() : nullptr;
                    sum += callee != nullptr && !callee->isDeclaration() ? count(*callee) : 1;
                }
            return known[&function] = sum;
        };
    std::size_t all = 0;
    for (const llvm::Function& function : module)
        if (!function.isDeclaration() && !function.hasLocalLinkage()) all += count(function);
    return all;
}

// Beyond this many instructions, vectorizing and unrolling take LLVM seconds to minutes. No
// hand-written program comes near.
constexpr std::size_t kManyInstructions = 6000;

// Removes the request to vectorize loops.
void keep_loops_scalar(llvm::Module& module) {
    llvm::LLVMContext& context = module.getContext();
    auto* never = llvm::ConstantAsMetadata::get(llvm::ConstantInt::getFalse(context));
    for (llvm::Function& function : module)
        for (llvm::BasicBlock& block : function) {
            llvm::MDNode* loop = block.empty() ? nullptr : block.back().getMetadata("llvm.loop");
            for (unsigned i = 1; loop != nullptr && i < loop->getNumOperands(); ++i) {
                auto* hint = llvm::dyn_cast<llvm::MDNode>(loop->getOperand(i));
                const auto* name = hint != nullptr && hint->getNumOperands() == 2
                                       ? llvm::dyn_cast<llvm::MDString>(hint->getOperand(0))
                                       : nullptr;
                if (name != nullptr && name->getString() == "llvm.loop.vectorize.enable")
                    hint->replaceOperandWith(1, never);
            }
        }
}

// Stops as soon as `stop` says so.
void optimize(llvm::Module& module, llvm::TargetMachine& machine, bool is_large,
              const StopQuery& stop) {
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager components;
    llvm::ModuleAnalysisManager modules;
    llvm::PipelineTuningOptions tuning;
    tuning.LoopVectorization = !is_large;
    tuning.LoopInterleaving = !is_large;
    tuning.LoopUnrolling = !is_large;
    llvm::PassInstrumentationCallbacks callbacks;
    callbacks.registerShouldRunOptionalPassCallback(
        [&](llvm::StringRef, const llvm::Any&) { return !stop(); });
    llvm::PassBuilder passes(&machine, tuning, {}, &callbacks);
    passes.registerModuleAnalyses(modules);
    passes.registerCGSCCAnalyses(components);
    passes.registerFunctionAnalyses(functions);
    passes.registerLoopAnalyses(loops);
    passes.crossRegisterProxies(loops, functions, components, modules);
    passes
        .buildPerModuleDefaultPipeline(is_large ? llvm::OptimizationLevel::O1
                                                : llvm::OptimizationLevel::O3)
        .run(module, modules);
}

llvm::Error failure(const std::string& message) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), message.c_str());
}

llvm::Expected<llvm::SmallVector<char, 0>> object_of(std::string_view text, const StopQuery& stop) {
    auto builder = host_builder();
    if (!builder) return builder.takeError();
    auto machine = builder->createTargetMachine();
    if (!machine) return machine.takeError();

    llvm::LLVMContext context;
    // Remarks such as "loop not vectorized" would go to stderr.
#if LLVM_VERSION_MAJOR >= 19
    context.setDiagnosticHandlerCallBack([](const llvm::DiagnosticInfo*, void*) {});
#else
    context.setDiagnosticHandlerCallBack([](const llvm::DiagnosticInfo&, void*) {});
#endif
    llvm::SMDiagnostic diagnostic;
    auto module =
        llvm::parseAssembly(llvm::MemoryBufferRef(llvm::StringRef(text.data(), text.size()), "mod"),
                            diagnostic, context);
    if (!module) {
        std::string message;
        llvm::raw_string_ostream stream(message);
        diagnostic.print("", stream, false);
        return failure("emitted LLVM IR does not parse:\n" + stream.str());
    }
#if LLVM_VERSION_MAJOR >= 21
    module->setTargetTriple((*machine)->getTargetTriple());
#else
    module->setTargetTriple((*machine)->getTargetTriple().str());
#endif
    module->setDataLayout((*machine)->createDataLayout());
    prefer_wide_vectors(*module, **machine);
    std::string message;
    llvm::raw_string_ostream stream(message);
    if (llvm::verifyModule(*module, &stream))
        return failure("emitted LLVM IR is not valid:\n" + stream.str());
    const bool is_large = instructions_of(*module) > kManyInstructions;
    if (is_large) {
        keep_loops_scalar(*module);
        (*machine)->setOptLevel(kLess);
    }
    optimize(*module, **machine, is_large, stop);
    if (stop()) return failure("stopped");

    llvm::SmallVector<char, 0> object;
    llvm::raw_svector_ostream out(object);
    llvm::legacy::PassManager code_generation;
    if ((*machine)->addPassesToEmitFile(code_generation, out, nullptr, kObjectFile))
        return failure("this target emits no object files");
    code_generation.run(*module);
    return object;
}

} // namespace

std::unique_ptr<JitModule> JitModule::compile(std::string_view text, const StopQuery& stop,
                                              std::string& object, std::string& error) {
    auto bytes = object_of(text, stop);
    if (!bytes) {
        error = text_of(bytes.takeError());
        return nullptr;
    }
    object.assign(bytes->data(), bytes->size());
    return load(object, error);
}

std::unique_ptr<JitModule> JitModule::load(std::string_view object, std::string& error) {
    auto module = link(llvm::MemoryBuffer::getMemBufferCopy(
        llvm::StringRef(object.data(), object.size()), "mod.o"));
    if (!module) {
        error = text_of(module.takeError());
        return nullptr;
    }
    return std::move(*module);
}

std::string jit_description() {
    auto builder = host_builder();
    if (!builder) return "LLVM " LLVM_VERSION_STRING ", " + text_of(builder.takeError());
    return "LLVM " LLVM_VERSION_STRING ", " + builder->getCPU() + " " +
           builder->getFeatures().getString();
}

} // namespace flexc::cpu
