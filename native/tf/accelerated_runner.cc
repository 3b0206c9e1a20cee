#include "native/tf/accelerated_runner.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "native/tf/buffer_type.h"
#include "native/tf/graph_walk.h"
#include "native/tf/resource_reads.h"
#include "native/tf/servable_device.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::Tensor;

pjrt::HostTensor AsHostTensor(const Tensor& tensor) {
  const auto sizes = tensor.shape().dim_sizes();
  return {BufferType(tensor.dtype()), {sizes.begin(), sizes.end()}, tensor.tensor_data().data()};
}

pjrt::RowProgram::RowType RowTypeOf(int dtype, const std::vector<int64_t>& dims) {
  pjrt::RowProgram::RowType type{BufferType(dtype), {dims.begin() + 1, dims.end()}, 0};
  type.bytes = tensorflow::DataTypeSize(static_cast<tensorflow::DataType>(dtype));
  for (const int64_t size : type.dims) type.bytes *= size;
  return type;
}

// Compiles the programs of one signature, by their rows, and adds them to `*program`.
Status Compile(const std::map<int64_t, std::string>& hlo_by_rows,
               const pjrt::ExecutableCache& cache, const pjrt::Accelerator& accelerator,
               pjrt::RowProgram* program) {
  for (const auto& [rows, hlo] : hlo_by_rows) {
    auto executable = cache.FindOrCompile(accelerator, hlo);
    if (!executable.ok()) return executable.status();
    MILLPOND_RETURN_IF_ERROR(program->AddSize(rows, std::move(executable.value())));
  }
  return {};
}

// Returns the node that may fail requests of the signature, as a reason, or "". XLA computes such a
// node as nothing, so a request that it should fail would be answered.
std::string CheckOf(const tensor::Signature& signature, const GraphWalk& graph) {
  std::vector<std::string> outputs;
  for (const tensor::TensorSpec& output : signature.outputs) outputs.push_back(output.tensor_name);
  std::string check;
  graph.VisitReachable(outputs, [&](const tensorflow::NodeDef& node, const std::string&) {
    const std::string& op = node.op();
    const bool fails = op == "Assert" || op == "CheckNumerics" || op == "CheckNumericsV2";
    if (fails && check.empty()) {
      check = "node '" + node.name() + "' (" + op +
              ") fails requests, and XLA leaves it out; export the signature without it";
    }
    return check.empty();
  });
  return check;
}

// Returns why a signature must run on the CPU whatever XLA can translate, or "".
std::string ReasonFor(const tensor::RowVerdicts& verdicts, const tensor::Signature& signature,
                      const GraphWalk& graph) {
  const auto verdict = verdicts.find(signature.name);
  if (verdict == verdicts.end()) return tensor::RowVerdict().reason;
  if (verdict->second.kind != tensor::RowVerdict::Kind::kIndependent) {
    return "its rows are not known to be independent: " + verdict->second.reason;
  }
  return CheckOf(signature, graph);
}

}  // namespace

// A signature that can be translated, and its programs, before the variables are there.
struct AcceleratedPrograms::Draft {
  const tensor::Signature* signature = nullptr;
  size_t report_index = 0;  // in signatures_
  std::vector<ResourceKey> variables;
  std::vector<pjrt::RowProgram::RowType> inputs;
  std::vector<pjrt::RowProgram::RowType> outputs;
  std::map<int64_t, std::string> hlo_by_rows;

  static StatusOr<Draft> Make(const AcceleratorUse& use, const tensorflow::MetaGraphDef& meta_graph,
                              const tensor::Signature& signature) {
    const auto compiler = HloCompiler::Make(meta_graph, signature);
    if (!compiler.ok()) return compiler.status();
    Draft draft;
    draft.signature = &signature;
    draft.variables = compiler.value()->variables();
    for (const auto& input : signature.inputs) {
      draft.inputs.push_back(RowTypeOf(input.dtype, input.dims));
    }
    for (const int64_t rows : use.rows) {
      StatusOr<HloProgram> program = compiler.value()->Translate(rows);
      if (!program.ok()) return program.status();
      draft.outputs.clear();
      for (size_t i = 0; i < signature.outputs.size(); ++i) {
        draft.outputs.push_back(
            RowTypeOf(signature.outputs[i].dtype, program.value().output_dims[i]));
      }
      draft.hlo_by_rows[rows] = std::move(program.value().hlo);
    }
    return draft;
  }
};

StatusOr<std::unique_ptr<AcceleratedPrograms>> AcceleratedPrograms::Make(
    const AcceleratorUse& use, const tensorflow::MetaGraphDef& meta_graph,
    const tensor::SignatureMap& signatures, const tensor::RowVerdicts& verdicts,
    tensorflow::Session* session) {
  std::unique_ptr<AcceleratedPrograms> made(new AcceleratedPrograms);
  std::vector<Draft> drafts;
  const GraphWalk graph(meta_graph);
  for (const auto& [name, signature] : signatures) {
    AcceleratedSignature& report = made->signatures_.emplace_back();
    report.name = name;
    report.reason =
        signature.obstacle.empty() ? ReasonFor(verdicts, signature, graph) : signature.obstacle;
    if (!report.reason.empty()) continue;
    StatusOr<Draft> draft = Draft::Make(use, meta_graph, signature);
    if (!draft.ok()) {
      report.reason = draft.status().message();
      continue;
    }
    draft.value().report_index = made->signatures_.size() - 1;
    drafts.push_back(std::move(draft.value()));
  }
  // Signatures share their variables.
  std::map<ResourceKey, size_t> indices;
  std::vector<Tensor> values;
  for (const Draft& draft : drafts) {
    for (const ResourceKey& key : draft.variables) {
      if (!indices.emplace(key, values.size()).second) continue;
      StatusOr<Tensor> value = ValueOf(key, session);
      if (!value.ok()) return value.status();
      values.push_back(std::move(value.value()));
    }
  }
  std::vector<pjrt::HostTensor> tensors;
  for (const Tensor& value : values) tensors.push_back(AsHostTensor(value));
  auto uploaded = pjrt::DeviceParameters::Upload(use.accelerator, tensors);
  if (!uploaded.ok()) return uploaded.status();
  made->parameters_ = std::move(uploaded.value());
  const pjrt::ExecutableCache cache(use.cache_directory);
  for (Draft& draft : drafts) {
    std::vector<size_t> parameter_indices;
    for (const ResourceKey& key : draft.variables) {
      parameter_indices.push_back(indices.at(key));
    }
    auto program =
        std::make_unique<pjrt::RowProgram>(made->parameters_, std::move(parameter_indices),
                                           std::move(draft.inputs), std::move(draft.outputs));
    const Status compiled = Compile(draft.hlo_by_rows, cache, *use.accelerator, program.get());
    AcceleratedSignature& report = made->signatures_[draft.report_index];
    if (compiled.ok()) {
      report.rows = program->sizes();
      made->programs_[draft.signature->name] = std::move(program);
    } else {
      report.reason = compiled.message();
    }
  }
  if (made->programs_.empty()) made->parameters_.reset();
  return made;
}

std::vector<pjrt::RunFigures> AcceleratedPrograms::run_figures() const {
  std::vector<pjrt::RunFigures> figures;
  for (const auto& [name, program] : programs_) figures.push_back(program->counts().Figures(name));
  return figures;
}

size_t AcceleratedPrograms::parameter_bytes() const {
  return parameters_ == nullptr ? 0 : parameters_->bytes();
}

std::unique_ptr<SignatureRunner> AcceleratedPrograms::Accelerate(
    std::unique_ptr<SignatureRunner> host, const tensor::Signature& signature) {
  const auto program = programs_.find(signature.name);
  if (program == programs_.end()) return host;
  return std::make_unique<AcceleratedRunner>(std::move(host), program->second.get(), signature);
}

Status AcceleratedRunner::Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                              tensor::TensorList* result) const {
  const std::optional<pjrt::CpuReason> reason = TryThere(outputs, inputs, result);
  if (!reason) return {};
  program_.counts().CountCpuRun(*reason);
  return host_->Run(outputs, inputs, result);
}

// Runs there, or returns the reason why the CPU has to.
std::optional<pjrt::CpuReason> AcceleratedRunner::TryThere(const tensor::OutputSet& outputs,
                                                           const tensor::TensorList& inputs,
                                                           tensor::TensorList* result) const {
  const std::optional<int64_t> rows = RowsOf(inputs);
  if (!rows) return pjrt::CpuReason::kShape;
  if (is_lost_.load(std::memory_order_relaxed)) return pjrt::CpuReason::kLost;
  const Status ran = RunThere(*rows, outputs, inputs, result);
  if (ran.ok()) return {};
  // Memory comes back when other runs end; all else is taken for the loss of the accelerator.
  if (ran.code() == base::Code::kResourceExhausted) return pjrt::CpuReason::kMemory;
  if (!is_lost_.exchange(true)) {
    LOG(ERROR) << "accelerator_lost: signature '" << signature_.name
               << "' runs on the CPU from now on: " << ran.message();
  }
  return pjrt::CpuReason::kFailed;
}

// Returns the rows of a request, or nothing if it has none, or not the shapes of the signature.
std::optional<int64_t> AcceleratedRunner::RowsOf(const tensor::TensorList& inputs) const {
  const std::vector<Tensor>& tensors = inputs.storage().tensors;
  std::optional<int64_t> rows;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const tensorflow::TensorShape& shape = tensors[i].shape();
    const std::vector<int64_t>& dims = signature_.inputs[i].dims;
    if (tensors[i].dtype() != signature_.inputs[i].dtype ||
        shape.dims() != static_cast<int>(dims.size())) {
      return {};
    }
    for (size_t dim = 1; dim < dims.size(); ++dim) {
      if (shape.dim_size(static_cast<int>(dim)) != dims[dim]) return {};
    }
    if (shape.dim_size(0) == 0 || (rows && shape.dim_size(0) != *rows)) return {};
    rows = shape.dim_size(0);
  }
  return rows;
}

Status AcceleratedRunner::RunThere(int64_t rows, const tensor::OutputSet& outputs,
                                   const tensor::TensorList& inputs,
                                   tensor::TensorList* result) const {
  static auto* const allocator = new RunAllocator(tensorflow::cpu_allocator());
  std::vector<const char*> from;
  for (const Tensor& input : inputs.storage().tensors) {
    from.push_back(static_cast<const char*>(input.data()));
  }
  std::vector<Tensor> computed;
  std::vector<char*> to;
  for (const tensor::TensorSpec& output : signature_.outputs) {
    tensorflow::TensorShape shape({rows});
    for (size_t dim = 1; dim < output.dims.size(); ++dim) shape.AddDim(output.dims[dim]);
    computed.emplace_back(allocator, static_cast<tensorflow::DataType>(output.dtype), shape);
    if (!computed.back().IsInitialized()) {
      return {base::Code::kResourceExhausted, "no memory is left for output '" + output.name + "'"};
    }
    to.push_back(static_cast<char*>(computed.back().data()));
  }
  MILLPOND_RETURN_IF_ERROR(program_.Run(rows, from, to));
  std::vector<Tensor>& wanted = result->storage().tensors;
  wanted.clear();
  for (size_t i = 0; i < computed.size(); ++i) {
    if (outputs.Contains(i)) wanted.push_back(std::move(computed[i]));
  }
  return {};
}

}  // namespace millpond::tf
