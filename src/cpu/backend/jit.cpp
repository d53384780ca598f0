// The only file that includes LLVM.
#include "cpu/backend/jit.h"

#include <cmath>
#include <cstring>
#include <mutex>

#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
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
#else
constexpr auto kObjectFile = llvm::CGFT_ObjectFile;
constexpr auto kAggressive = llvm::CodeGenOpt::Aggressive;
#endif

void initialize_target() {
    static std::once_flag once;
    std::call_once(once, [] {
        llvm::InitializeNativeTarget();
        llvm::InitializeNativeTargetAsmPrinter();
        llvm::InitializeNativeTargetAsmParser();
    });
}

llvm::Expected<orc::JITTargetMachineBuilder> host_builder() {
    initialize_target();
    auto builder = orc::JITTargetMachineBuilder::detectHost();
    if (builder) {
        builder->setCodeGenOptLevel(kAggressive);
        builder->setRelocationModel(llvm::Reloc::PIC_);
    }
    return builder;
}

std::string text_of(llvm::Error error) { return llvm::toString(std::move(error)); }

// What LLVM may call for an operation that the processor has no instruction for.
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
    // No static constructors and no symbols of the process: the code stands alone.
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

// As wide as the processor has: the loops are long and the matrix products use full width anyway.
void prefer_wide_vectors(llvm::Module& module, const llvm::TargetMachine& machine) {
    if (!machine.getTargetFeatureString().contains("+avx512f")) return;
    for (llvm::Function& function : module)
        if (!function.isDeclaration()) function.addFnAttr("prefer-vector-width", "512");
}

void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager components;
    llvm::ModuleAnalysisManager modules;
    llvm::PipelineTuningOptions tuning;
    tuning.LoopVectorization = true;
    tuning.LoopInterleaving = true;
    llvm::PassBuilder passes(&machine, tuning);
    passes.registerModuleAnalyses(modules);
    passes.registerCGSCCAnalyses(components);
    passes.registerFunctionAnalyses(functions);
    passes.registerLoopAnalyses(loops);
    passes.crossRegisterProxies(loops, functions, components, modules);
    passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O3).run(module, modules);
}

llvm::Error failure(const std::string& message) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), message.c_str());
}

llvm::Expected<llvm::SmallVector<char, 0>> object_of(std::string_view text) {
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
    optimize(*module, **machine);

    llvm::SmallVector<char, 0> object;
    llvm::raw_svector_ostream out(object);
    llvm::legacy::PassManager code_generation;
    if ((*machine)->addPassesToEmitFile(code_generation, out, nullptr, kObjectFile))
        return failure("this target emits no object files");
    code_generation.run(*module);
    return object;
}

} // namespace

std::unique_ptr<JitModule> JitModule::compile(std::string_view text, std::string& object,
                                              std::string& error) {
    auto bytes = object_of(text);
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
