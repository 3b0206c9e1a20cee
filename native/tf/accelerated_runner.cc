#include "native/tf/accelerated_runner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "native/base/giving_way.h"
#include "native/tf/buffer_type.h"
#include "native/tf/device_worth.h"
#include "native/tf/resource_reads.h"
#include "native/tf/servable_device.h"
#include "native/tf/split_runner.h"
#include "native/tf/status.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::Tensor;

pjrt::HostTensor AsHostTensor(const Tensor& tensor) {
  const auto sizes = tensor.shape().dim_sizes();
  const auto data = tensor.tensor_data();
  return {BufferType(tensor.dtype()), {sizes.begin(), sizes.end()}, data.data(), data.size()};
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

using Variables = std::map<ResourceKey, SignatureSplit::Variable>;

// Returns for each signature the variables that its device part would have if no table stayed here.
std::map<std::string, Variables> VariablesOf(const tensorflow::MetaGraphDef& meta_graph,
                                             const tensor::SignatureMap& signatures) {
  std::map<std::string, Variables> variables;
  for (const auto& [name, signature] : signatures) {
    Variables& of_signature = variables[name];
    if (!signature.obstacle.empty()) continue;
    StatusOr<SignatureSplit> split = SplitSignature(meta_graph, signature, "", {});
    if (split.ok()) of_signature = std::move(split.value().variables);
  }
  return variables;
}

// A variable is a table if all signatures only look rows up in it.
Variables Together(const std::map<std::string, Variables>& by_signature) {
  Variables all;
  for (const auto& [name, variables] : by_signature) {
    for (const auto& [key, variable] : variables) {
      const auto [known, is_new] = all.emplace(key, variable);
      if (!is_new) known->second.is_table = known->second.is_table && variable.is_table;
    }
  }
  return all;
}

// The bytes that the parameters of a version may take on each accelerator: what is free, and half
// of all at most, so that the version after it fits beside it. All is what the model may have.
int64_t RoomBytes(const AcceleratorUse& use) {
  int64_t room =
      use.memory_bytes_max > 0 ? use.memory_bytes_max / 2 : std::numeric_limits<int64_t>::max();
  for (const auto& accelerator : use.accelerators) {
    const pjrt::AcceleratorState state = accelerator->State();
    if (state.limit_bytes == 0) continue;
    const auto memory = accelerator->Memory();
    const int64_t used = memory.ok() ? memory.value().used_bytes : state.parameter_bytes;
    room = std::min({room, state.limit_bytes / 2, state.limit_bytes - used});
  }
  return room;
}

// Adds the nodes of the device part that the error of a translation names, as "{{node NAME}}", to
// `*barred`. Returns false if it names none.
bool AddNamedNodes(const std::string& error, const SignatureSplit& split, HostNodes* barred) {
  bool has_added = false;
  for (const tensorflow::NodeDef& node : split.device_graph->graph_def().node()) {
    if (error.find("{{node " + node.name() + "}}") == std::string::npos) continue;
    has_added = barred->emplace(node.name(), "XLA cannot compile: " + error).second || has_added;
  }
  return has_added;
}

}  // namespace

// A signature with a device part that can be translated, and its programs, before the variables are
// there.
struct AcceleratedPrograms::Draft {
  const tensor::Signature* signature = nullptr;
  size_t report_index = 0;  // in signatures_
  SignatureSplit split;
  std::vector<ResourceKey> variables;
  std::vector<pjrt::RowProgram::RowType> inputs;
  std::vector<pjrt::RowProgram::RowType> outputs;
  std::map<int64_t, std::string> hlo_by_rows;

  // XLA refuses some nodes only when it translates them, because a size is not a constant. Then the
  // graph is cut again, behind them.
  static StatusOr<Draft> Make(const AcceleratorUse& use, const tensorflow::MetaGraphDef& meta_graph,
                              const tensor::Signature& signature, const std::string& prefix,
                              const std::set<ResourceKey>& host_tables) {
    constexpr int kCutsMax = 8;
    SplitLimits limits{{}, host_tables};
    for (int cuts = 1;; ++cuts) {
      StatusOr<SignatureSplit> split = SplitSignature(meta_graph, signature, prefix, limits);
      if (!split.ok()) return split.status();
      Draft draft;
      draft.signature = &signature;
      draft.split = std::move(split.value());
      const Status translated = draft.Translate(use);
      if (translated.ok()) return draft;
      if (cuts == kCutsMax || !AddNamedNodes(translated.message(), draft.split, &limits.barred)) {
        return translated;
      }
    }
  }

  // Translates for the most rows first, which tells whether the others are worth it.
  Status Translate(const AcceleratorUse& use) {
    const auto compiler = HloCompiler::Make(*split.device_graph, split.device);
    if (!compiler.ok()) return compiler.status();
    variables = compiler.value()->variables();
    for (const auto& input : split.device.inputs) {
      inputs.push_back(RowTypeOf(input.dtype, input.dims));
    }
    for (auto rows = use.rows.rbegin(); rows != use.rows.rend(); ++rows) {
      StatusOr<HloProgram> program = compiler.value()->Translate(*rows);
      if (!program.ok()) return program.status();
      if (hlo_by_rows.empty()) {
        MILLPOND_RETURN_IF_ERROR(TakeOutputs(use, program.value(), *rows));
      }
      hlo_by_rows[*rows] = std::move(program.value().hlo);
    }
    return {};
  }

  Status TakeOutputs(const AcceleratorUse& use, const HloProgram& program, int64_t rows) {
    int64_t bytes = 0;
    for (size_t i = 0; i < split.device.outputs.size(); ++i) {
      outputs.push_back(RowTypeOf(split.device.outputs[i].dtype, program.output_dims[i]));
      bytes += static_cast<int64_t>(outputs.back().bytes);
    }
    for (const auto& input : inputs) bytes += static_cast<int64_t>(input.bytes);
    const std::string reason =
        WhyNotWorthAccelerating(CountProductFlops(program.hlo) / rows, bytes);
    if (reason.empty() || !use.only_if_worth) return {};
    return {base::Code::kUnimplemented, reason + HostOpsInWords()};
  }

  std::string HostOpsInWords() const {
    std::string words;
    for (const std::string& op : split.host_ops) words += (words.empty() ? "" : ", ") + op;
    return words.empty() ? "" : "; its " + words + " stays on the CPU";
  }

  // Compiles the programs for each accelerator, and adds the nodes of the host part to the session.
  StatusOr<Programs> Compile(const AcceleratorUse& use,
                             const std::vector<std::shared_ptr<pjrt::DeviceParameters>>& parameters,
                             const std::vector<size_t>& parameter_indices,
                             tensorflow::Session* session) const {
    const pjrt::ExecutableCache cache(use.cache_directory);
    Programs programs;
    for (const auto& replica : parameters) {
      programs.push_back(
          std::make_unique<pjrt::RowProgram>(replica, parameter_indices, inputs, outputs));
      MILLPOND_RETURN_IF_ERROR(millpond::tf::Compile(hlo_by_rows, cache, *replica->accelerator(),
                                                     programs.back().get()));
    }
    if (split.has_host_part()) {
      MILLPOND_RETURN_IF_TF_ERROR(session->Extend(*split.host_graph), "adding the host part");
    }
    return programs;
  }
};

StatusOr<std::unique_ptr<AcceleratedPrograms>> AcceleratedPrograms::Make(
    const AcceleratorUse& use, const tensorflow::MetaGraphDef& meta_graph,
    const tensor::SignatureMap& signatures, tensorflow::Session* session) {
  std::unique_ptr<AcceleratedPrograms> made(new AcceleratedPrograms);
  std::vector<Draft> drafts;
  const std::map<std::string, Variables> variables = VariablesOf(meta_graph, signatures);
  const std::set<ResourceKey> host_tables =
      ChooseHostTables(Together(variables), use.tables, RoomBytes(use));
  for (const auto& [name, signature] : signatures) {
    AcceleratedSignature& report = made->signatures_.emplace_back();
    report.name = name;
    report.reason = signature.obstacle;
    if (!report.reason.empty()) continue;
    const std::string prefix = "millpond/" + std::to_string(made->signatures_.size()) + "/";
    StatusOr<Draft> draft = Draft::Make(use, meta_graph, signature, prefix, host_tables);
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
  // No request writes to a variable, so its memory stays as it is while the session lives.
  std::vector<pjrt::HostTensor> tensors;
  for (const Tensor& value : values) tensors.push_back(AsHostTensor(value));
  for (const auto& accelerator : use.accelerators) {
    made->parameters_.push_back(
        std::make_shared<pjrt::DeviceParameters>(accelerator, use.model, tensors, use.is_low));
  }
  for (Draft& draft : drafts) {
    std::vector<size_t> parameter_indices;
    for (const ResourceKey& key : draft.variables) {
      parameter_indices.push_back(indices.at(key));
    }
    auto programs = draft.Compile(use, made->parameters_, parameter_indices, session);
    AcceleratedSignature& report = made->signatures_[draft.report_index];
    if (!programs.ok()) {
      report.reason = programs.status().message();
      continue;
    }
    report.rows = programs.value().front()->sizes();
    report.host_ops.assign(draft.split.host_ops.begin(), draft.split.host_ops.end());
    for (const auto& [key, variable] : variables.at(report.name)) {
      if (host_tables.count(key) > 0) report.host_tables.push_back(key.name);
    }
    made->programs_[draft.signature->name] = std::move(programs.value());
    made->splits_.emplace(draft.signature->name, std::move(draft.split));
  }
  if (made->programs_.empty()) {
    made->parameters_.clear();
    return made;
  }
  MILLPOND_RETURN_IF_ERROR(made->Upload(use));
  return made;
}

// Uploads the parameters to each accelerator that has room. It is enough if one of them has.
Status AcceleratedPrograms::Upload(const AcceleratorUse& use) {
  int64_t run_bytes = 0;
  for (const auto& [name, programs] : programs_) {
    run_bytes = std::max(run_bytes, programs.front()->run_bytes_max());
  }
  Status uploaded;
  bool is_there = false;
  for (const auto& replica : parameters_) {
    replica->accelerator()->memory().SetQuota(use.model, use.memory_bytes_max);
    Status tried = replica->Upload(run_bytes);
    is_there = is_there || tried.ok();
    if (tried.ok()) continue;
    LOG(WARNING) << "accelerator_replica_away: device " << replica->accelerator()->name() << ": "
                 << tried.message();
    if (uploaded.ok()) uploaded = std::move(tried);
  }
  if (is_there) return {};
  if (use.is_needed || uploaded.code() != base::Code::kResourceExhausted) return uploaded;
  for (AcceleratedSignature& report : signatures_) {
    if (!report.rows.empty()) report.reason = uploaded.message();
  }
  return {};
}

std::vector<AcceleratedSignature> AcceleratedPrograms::signatures() const {
  std::vector<AcceleratedSignature> signatures = signatures_;
  const auto uploads = upload_figures();
  const bool is_there = std::any_of(uploads.begin(), uploads.end(),
                                    [](const auto& upload) { return upload.resident_bytes > 0; });
  if (!is_there) return signatures;
  // The parameters are there now, if they were not at the load.
  for (AcceleratedSignature& signature : signatures) {
    if (!signature.rows.empty()) signature.reason.clear();
  }
  return signatures;
}

std::vector<pjrt::UploadFigures> AcceleratedPrograms::upload_figures() const {
  std::vector<pjrt::UploadFigures> figures;
  for (const auto& replica : parameters_) figures.push_back(replica->figures());
  return figures;
}

std::vector<pjrt::RunFigures> AcceleratedPrograms::run_figures() const {
  std::vector<pjrt::RunFigures> figures;
  for (const auto& [name, programs] : programs_) {
    for (const auto& program : programs) {
      figures.push_back(program->counts().Figures(name));
      figures.back().device = program->parameters().accelerator()->name();
    }
  }
  return figures;
}

int64_t AcceleratedPrograms::parameter_bytes() const {
  return parameters_.empty() ? 0 : parameters_.front()->bytes();
}

std::unique_ptr<SignatureRunner> AcceleratedPrograms::Accelerate(const tensor::Signature& signature,
                                                                 const MakeRunner& make_runner) {
  std::unique_ptr<SignatureRunner> whole = make_runner(signature);
  const auto split = splits_.find(signature.name);
  if (split == splits_.end()) return whole;
  const SignatureSplit& parts = split->second;
  std::vector<const pjrt::RowProgram*> programs;
  for (const auto& program : programs_.at(signature.name)) programs.push_back(program.get());
  auto device = std::make_unique<AcceleratedRunner>(std::make_unique<RefusingRunner>(), programs,
                                                    parts.device, parts.needs_exact_rows);
  return std::make_unique<SplitRunner>(std::move(whole),
                                       parts.has_host_part() ? make_runner(parts.host) : nullptr,
                                       std::move(device), parts);
}

AcceleratedRunner::AcceleratedRunner(std::unique_ptr<SignatureRunner> host,
                                     const std::vector<const pjrt::RowProgram*>& programs,
                                     const tensor::Signature& signature, bool needs_exact_rows)
    : host_(std::move(host)), signature_(signature), needs_exact_rows_(needs_exact_rows) {
  for (const pjrt::RowProgram* program : programs) {
    replicas_.push_back(std::make_unique<const Replica>(*program));
  }
}

Status AcceleratedRunner::Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                              tensor::TensorList* result) const {
  const auto tried = TryThere(outputs, inputs, result);
  if (!tried.ok()) return tried.status();
  if (!tried.value()) return {};
  CountCpuRun(*tried.value());
  return host_->Run(outputs, inputs, result);
}

bool AcceleratedRunner::MayRun(std::optional<int64_t> rows) const {
  std::optional<pjrt::CpuReason> reason;
  if (rows && !HasProgramFor(*rows)) {
    reason = pjrt::CpuReason::kShape;
  } else if (const base::KeptPriority kept; !kept) {
    reason = pjrt::CpuReason::kGaveWay;
  } else if (const Choice choice = Choose(0); choice.replica == nullptr) {
    reason = choice.reason;
  }
  if (reason) CountCpuRun(*reason);
  return !reason;
}

bool AcceleratedRunner::HasProgramFor(int64_t rows) const {
  return rows > 0 && (!needs_exact_rows_ || replicas_[0]->program.HasSize(rows));
}

// Chooses the replica with the shortest expected wait. All of them are pinned for it, so that each
// stays in use, or is asked for. Of equal ones it takes the first one from `first` on.
AcceleratedRunner::Choice AcceleratedRunner::Choose(size_t first) const {
  Choice choice;
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = *replicas_[(first + i) % replicas_.size()];
    Copy copy = PinCopy(replica);
    if (copy == nullptr) {
      if (!replica.is_lost.load(std::memory_order_relaxed)) choice.reason = pjrt::CpuReason::kAway;
      continue;
    }
    if (replicas_.size() == 1) return {&replica, std::move(copy)};
    const pjrt::DeviceParameters& parameters = replica.program.parameters();
    const int64_t wait_ns = parameters.accelerator()->turns().ExpectedWaitNs(parameters.is_low());
    if (wait_ns >= least_ns) continue;
    least_ns = wait_ns;
    choice.replica = &replica;
    choice.copy = std::move(copy);
  }
  return choice;
}

// Takes the parameters of a replica; null if they are away, or if the replica is lost.
AcceleratedRunner::Copy AcceleratedRunner::PinCopy(const Replica& replica) const {
  if (replica.is_lost.load(std::memory_order_relaxed)) return nullptr;
  Copy copy = replica.program.parameters().Pin();
  if (copy != nullptr) return copy;
  const Status uploaded = replica.program.parameters().upload_error();
  if (!uploaded.ok()) GiveUp(replica, uploaded);
  return nullptr;
}

void AcceleratedRunner::GiveUp(const Replica& replica, const Status& error) const {
  const pjrt::Accelerator& accelerator = *replica.program.parameters().accelerator();
  accelerator.NoteFailure();
  if (replica.is_lost.exchange(true)) return;
  LOG(ERROR) << "accelerator_lost: signature '" << signature_.name << "' leaves device "
             << accelerator.name()
             << ", and runs on other devices that have it, or on the CPU: " << error.message();
}

// Runs there, or returns the reason why the CPU has to. Its only error is DEADLINE_EXCEEDED.
StatusOr<std::optional<pjrt::CpuReason>> AcceleratedRunner::TryThere(
    const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
    tensor::TensorList* result) const {
  const std::optional<int64_t> rows = RowsOf(inputs);
  if (!rows || !HasProgramFor(*rows)) return std::optional(pjrt::CpuReason::kShape);
  // All other runs would wait for a thread that has a turn and no core.
  const base::KeptPriority kept;
  if (!kept) return std::optional(pjrt::CpuReason::kGaveWay);
  bool has_failed = false;
  for (;;) {
    const Choice choice = Choose(next_first_.fetch_add(1, std::memory_order_relaxed));
    if (choice.replica == nullptr) {
      return std::optional(has_failed ? pjrt::CpuReason::kFailed : choice.reason);
    }
    const Status ran = RunThere(choice, *rows, outputs, inputs, result);
    switch (ran.code()) {
      case base::Code::kOk:
        return std::optional<pjrt::CpuReason>();
      case base::Code::kDeadlineExceeded:
        return ran;
      case base::Code::kResourceExhausted:  // memory comes back when other runs end
        return std::optional(pjrt::CpuReason::kMemory);
      case base::Code::kAborted:
        return std::optional(pjrt::CpuReason::kWaited);
      default:  // taken for the loss of the accelerator
        GiveUp(*choice.replica, ran);
        has_failed = true;
    }
  }
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

Status AcceleratedRunner::RunThere(const Choice& choice, int64_t rows,
                                   const tensor::OutputSet& outputs,
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
  MILLPOND_RETURN_IF_ERROR(
      choice.replica->program.Run(*choice.copy, rows, from, to, RunScope::CurrentDeadlineNs()));
  std::vector<Tensor>& wanted = result->storage().tensors;
  wanted.clear();
  for (size_t i = 0; i < computed.size(); ++i) {
    if (outputs.Contains(i)) wanted.push_back(std::move(computed[i]));
  }
  return {};
}

}  // namespace millpond::tf
