#include "native/tf/accelerated_runner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "native/base/giving_way.h"
#include "native/pjrt/row_scatter.h"
#include "native/pjrt/tuned_trial.h"
#include "native/tf/resource_reads.h"
#include "native/tf/scatter_program.h"
#include "native/tf/servable_device.h"
#include "native/tf/split_runner.h"
#include "native/tf/status.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::Tensor;

// The memory of this process for runs, within the limits of the run on the calling thread.
tsl::Allocator* RunMemory() {
  static auto* const allocator = new RunAllocator(tensorflow::cpu_allocator());
  return allocator;
}

std::shared_ptr<char> TakeRunMemory(size_t bytes) {
  tsl::Allocator* const allocator = RunMemory();
  void* const block = allocator->AllocateRaw(tensorflow::Allocator::kAllocatorAlignment, bytes);
  if (block == nullptr) return nullptr;
  return {static_cast<char*>(block), [=](char* taken) { allocator->DeallocateRaw(taken); }};
}

}  // namespace

StatusOr<std::unique_ptr<AcceleratedPrograms>> AcceleratedPrograms::Make(
    DraftedPrograms drafted, tensorflow::Session* session) {
  std::unique_ptr<AcceleratedPrograms> made(new AcceleratedPrograms);
  const AcceleratorUse& use = drafted.use();
  for (const auto& accelerator : use.accelerators) {
    made->parameters_.push_back(std::make_shared<pjrt::DeviceParameters>(
        accelerator, use.model, drafted.tensors(), use.is_low, use.version));
  }
  const pjrt::ExecutableCache cache(use.cache_directory);
  auto& reports = drafted.drafts().reports;
  for (SignatureDraft& draft : drafted.drafts().drafts) {
    std::vector<size_t> parameter_indices;
    for (const ResourceKey& key : draft.variables) {
      parameter_indices.push_back(drafted.IndexOf(key));
    }
    auto programs = made->Compile(cache, parameter_indices, session, &draft);
    AcceleratedSignature& report = reports.at(draft.signature->name);
    if (!programs.ok()) {
      report.reason = programs.status().message();
      continue;
    }
    report = std::move(draft.report);
    if (use.tunes_later) {
      for (const int64_t rows : report.untuned_rows) {
        made->untuned_[draft.signature->name][rows] = std::move(draft.hlo_by_rows.at(rows));
      }
    }
    made->programs_[draft.signature->name] = std::move(programs.value());
    made->splits_.emplace(draft.signature->name, std::move(draft.split));
    if (use.only_if_worth) {
      made->sides_.emplace(draft.signature->name, std::make_unique<MeasuredSides>(report.rows));
    }
  }
  for (auto& [name, report] : reports) made->signatures_.push_back(std::move(report));
  if (made->programs_.empty()) {
    made->parameters_.clear();
    return made;
  }
  if (use.pin_parameters) use.pin_parameters(made->parameter_bytes());
  MILLPOND_RETURN_IF_ERROR(made->Upload(use, cache, drafted.tensors()));
  return made;
}

// Compiles the programs of a signature for each accelerator, and adds the nodes of the host part to
// the session. Notes in `*draft` which programs are not autotuned.
StatusOr<AcceleratedPrograms::Programs> AcceleratedPrograms::Compile(
    const pjrt::ExecutableCache& cache, const std::vector<size_t>& parameter_indices,
    tensorflow::Session* session, SignatureDraft* draft) {
  std::set<int64_t> untuned_rows;
  Programs programs;
  for (const auto& replica : parameters_) {
    programs.push_back(std::make_unique<pjrt::RowProgram>(
        replica, parameter_indices, draft->input_bytes, draft->output_bytes,
        draft->split.needs_exact_rows, TakeRunMemory));
    MILLPOND_RETURN_IF_ERROR(CompileSizes(cache, *draft, programs.back().get(), &untuned_rows));
  }
  draft->report.untuned_rows.assign(untuned_rows.begin(), untuned_rows.end());
  if (draft->split.has_host_part()) {
    MILLPOND_RETURN_IF_TF_ERROR(session->Extend(*draft->split.host_graph), "adding the host part");
  }
  return programs;
}

// Adds the programs of one signature to `*program`, and the rows of those without autotuning to
// `*untuned_rows`.
Status AcceleratedPrograms::CompileSizes(const pjrt::ExecutableCache& cache,
                                         const SignatureDraft& draft, pjrt::RowProgram* program,
                                         std::set<int64_t>* untuned_rows) {
  for (const auto& [rows, hlo] : draft.hlo_by_rows) {
    auto found = cache.FindOrCompile(*program->parameters().accelerator(), hlo);
    if (!found.ok()) return found.status();
    if (found.value().is_compiled) ++compiled_count_;
    if (!found.value().is_autotuned) untuned_rows->insert(rows);
    MILLPOND_RETURN_IF_ERROR(program->AddSize(rows, std::move(found.value().executable)));
  }
  return {};
}

// Compiles the scatters of the tables that deltas may change. A table without one is sent as a
// whole.
pjrt::RowScatters AcceleratedPrograms::CompileScatters(
    const pjrt::ExecutableCache& cache, const pjrt::Accelerator& accelerator,
    const std::vector<pjrt::HostTensor>& tensors) {
  pjrt::RowScatters scatters;
  for (const pjrt::HostTensor* const table : TablesOfDeltas(tensors)) {
    auto scatter = CompileScatter(cache, accelerator, *table);
    if (!scatter.ok()) {
      LOG(WARNING) << "scatter_not_compiled: " << table->contents->name << ": "
                   << scatter.status().message();
    } else if (scatter.value() != nullptr) {
      scatters.Add(*table, std::move(scatter.value()));
    }
  }
  return scatters;
}

// Returns null if the table must be sent as a whole.
StatusOr<std::unique_ptr<pjrt::RowScatter>> AcceleratedPrograms::CompileScatter(
    const pjrt::ExecutableCache& cache, const pjrt::Accelerator& accelerator,
    const pjrt::HostTensor& table) {
  const auto hlo_by_rows = ScatterPrograms(table);
  if (!hlo_by_rows.ok()) return hlo_by_rows.status();
  std::map<int64_t, std::shared_ptr<const pjrt::Executable>> programs;
  for (const auto& [rows, hlo] : hlo_by_rows.value()) {
    auto found = cache.FindOrCompile(accelerator, hlo);
    if (!found.ok()) return found.status();
    if (found.value().is_compiled) ++compiled_count_;
    programs[rows] = std::move(found.value().executable);
  }
  if (programs.empty()) return std::unique_ptr<pjrt::RowScatter>();
  return std::make_unique<pjrt::RowScatter>(std::move(programs));
}

// Uploads the parameters to each accelerator that has room. It is enough if one of them has.
Status AcceleratedPrograms::Upload(const AcceleratorUse& use, const pjrt::ExecutableCache& cache,
                                   const std::vector<pjrt::HostTensor>& tensors) {
  int64_t run_bytes = 0;
  for (const auto& [name, programs] : programs_) {
    run_bytes = std::max(run_bytes, programs.front()->run_bytes_max());
  }
  Status uploaded;
  bool is_there = false;
  for (const auto& replica : parameters_) {
    replica->accelerator()->memory().SetQuota(use.model, use.memory_bytes_max);
    Status tried =
        replica->Upload(run_bytes, CompileScatters(cache, *replica->accelerator(), tensors));
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

std::vector<std::string> AcceleratedPrograms::UntunedPrograms(
    const std::string& cache_directory) const {
  if (parameters_.empty()) return {};
  const pjrt::Accelerator& accelerator = *parameters_.front()->accelerator();
  const pjrt::ExecutableCache cache(cache_directory);
  std::set<std::string> programs;
  const std::lock_guard lock(tuning_);
  for (const auto& [signature, by_rows] : untuned_) {
    for (const auto& [rows, hlo] : by_rows) {
      if (!cache.HasAutotuned(accelerator, hlo)) programs.insert(hlo);
    }
  }
  return {programs.begin(), programs.end()};
}

OfferedPrograms AcceleratedPrograms::OfferTuned(const std::string& cache_directory) {
  const pjrt::ExecutableCache cache(cache_directory);
  std::vector<std::pair<std::string, int64_t>> untuned;
  for (const auto& [signature, by_rows] : untuned_) {
    for (const auto& [rows, hlo] : by_rows) untuned.emplace_back(signature, rows);
  }
  OfferedPrograms offered;
  for (const auto& [signature, rows] : untuned) Offer(cache, signature, rows, &offered);
  return offered;
}

// Offers a program, and adds what became of it to `*offered`.
void AcceleratedPrograms::Offer(const pjrt::ExecutableCache& cache, const std::string& signature,
                                int64_t rows, OfferedPrograms* offered) {
  NoteIfTuned(signature, rows);  // all others may have been lost since the last offer
  const auto program = untuned_.at(signature).find(rows);
  if (program == untuned_.at(signature).end()) return;
  const Status status =
      OfferTo(programs_.at(signature), cache, rows, program->second, &offered->shortage);
  if (status.ok()) {
    offered->rows.insert(rows);
    return;
  }
  const std::string reason = "of " + std::to_string(rows) + " rows: " + status.message();
  LOG(INFO) << "program_not_offered: " << reason;
  if (status.code() == base::Code::kResourceExhausted) {
    offered->shortage = status.message();
  } else if (status.code() != base::Code::kNotFound) {
    offered->damage = "a program " + reason;
    const std::lock_guard lock(tuning_);
    untuned_.at(signature).erase(rows);
  }
}

// Says whether a program was not loaded because its device fails, and not because of the program.
bool AcceleratedPrograms::IsOfDevice(const Status& failed, const pjrt::Accelerator& accelerator) {
  return failed.code() != base::Code::kNotFound &&
         failed.code() != base::Code::kResourceExhausted && !accelerator.Responds();
}

// Offers a program on each accelerator that has it untuned, and does not fail; sets `*shortage` if
// one fails now. Offers it nowhere if it cannot be offered on one of them.
Status AcceleratedPrograms::OfferTo(const Programs& programs, const pjrt::ExecutableCache& cache,
                                    int64_t rows, const std::string& hlo, std::string* shortage) {
  Status offered = base::NotFound("no accelerator is left that does not fail");
  for (const auto& program : programs) {
    if (program->is_lost() || program->HasReplaced(rows)) continue;
    const pjrt::Accelerator& accelerator = *program->parameters().accelerator();
    if (accelerator.State().is_failing) {
      *shortage = "device " + accelerator.name() + " fails now";
      continue;
    }
    Status there = OfferThere(cache, *program, rows, hlo);
    if (!there.ok() && IsOfDevice(there, accelerator)) {
      accelerator.NoteFailure();
      *shortage = "device " + accelerator.name() + " fails now: " + there.message();
      continue;
    }
    offered = std::move(there);
    if (offered.ok()) continue;
    for (const auto& each : programs) each->WithdrawOffered(rows);
    break;
  }
  return offered;
}

// Returns NOT_FOUND if the cache has it not, and RESOURCE_EXHAUSTED if there is no memory for it
// now, of the plugin or of its model.
Status AcceleratedPrograms::OfferThere(const pjrt::ExecutableCache& cache,
                                       pjrt::RowProgram& program, int64_t rows,
                                       const std::string& hlo) {
  auto executable = cache.FindAutotuned(*program.parameters().accelerator(), hlo);
  if (!executable.ok()) return executable.status();
  return program.Offer(rows, std::move(executable.value()));
}

int64_t AcceleratedPrograms::UseTuned(int64_t rows) {
  int64_t used_count = 0;
  for (const auto& [signature, programs] : programs_) {
    int64_t passed_count = 0;
    for (const auto& program : programs) {
      // A replica that was lost has tried nothing.
      if (program->HasPassed(rows) && program->UseOffered(rows)) ++passed_count;
    }
    if (passed_count == 0) continue;
    for (const auto& program : programs) program->WithdrawOffered(rows);
    ++used_count;
    NoteIfTuned(signature, rows);
  }
  return used_count;
}

// Notes the program as tuned if each accelerator that is left has replaced it. An accelerator that
// fails now gets it later.
void AcceleratedPrograms::NoteIfTuned(const std::string& signature, int64_t rows) {
  int64_t tuned_count = 0;
  for (const auto& program : programs_.at(signature)) {
    if (program->HasReplaced(rows)) {
      ++tuned_count;
    } else if (!program->is_lost()) {
      return;
    }
  }
  if (tuned_count == 0) return;
  const std::lock_guard lock(tuning_);
  untuned_.at(signature).erase(rows);
  for (AcceleratedSignature& report : signatures_) {
    if (report.name != signature) continue;
    std::vector<int64_t>& untuned = report.untuned_rows;
    untuned.erase(std::remove(untuned.begin(), untuned.end(), rows), untuned.end());
  }
}

void AcceleratedPrograms::WithdrawTuned() {
  for (const auto& [signature, by_rows] : untuned_) {
    for (const auto& [rows, hlo] : by_rows) {
      for (const auto& program : programs_.at(signature)) program->WithdrawOffered(rows);
    }
  }
}

std::vector<AcceleratedSignature> AcceleratedPrograms::signatures() const {
  std::vector<AcceleratedSignature> signatures;
  {
    const std::lock_guard lock(tuning_);
    signatures = signatures_;
  }
  for (AcceleratedSignature& signature : signatures) {
    const MeasuredSides* const sides = SidesOf(signature.name);
    if (sides != nullptr) signature.sizes = sides->times.Times();
  }
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

MeasuredSides* AcceleratedPrograms::SidesOf(const std::string& signature) const {
  const auto found = sides_.find(signature);
  return found == sides_.end() ? nullptr : found->second.get();
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
                                                    parts.device);
  return std::make_unique<SplitRunner>(std::move(whole),
                                       parts.has_host_part() ? make_runner(parts.host) : nullptr,
                                       std::move(device), parts, SidesOf(signature.name));
}

AcceleratedRunner::AcceleratedRunner(std::unique_ptr<SignatureRunner> host,
                                     const std::vector<const pjrt::RowProgram*>& programs,
                                     const tensor::Signature& signature)
    : host_(std::move(host)), replicas_(programs), signature_(signature) {}

Status AcceleratedRunner::RunInTurn(const tensor::OutputSet& outputs,
                                    const tensor::TensorList& inputs, tensor::TensorList* result,
                                    int64_t* wait_ns) const {
  if (pjrt::TunedTrial::rows() != pjrt::TunedTrial::kNone) return Try(outputs, inputs, result);
  const auto tried = TryThere(outputs, inputs, result, wait_ns);
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

bool AcceleratedRunner::IsThere() const {
  return std::any_of(replicas_.begin(), replicas_.end(),
                     [](const auto& replica) { return replica->parameters().IsThere(); });
}

bool AcceleratedRunner::HasProgramFor(int64_t rows) const { return replicas_[0]->MayRun(rows); }

// Chooses the replica with the shortest expected wait. All of them are pinned for it, so that each
// stays in use, or is asked for. Of equal ones it takes the first one from `first` on.
AcceleratedRunner::Choice AcceleratedRunner::Choose(size_t first) const {
  Choice choice;
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const pjrt::RowProgram& replica = *replicas_[(first + i) % replicas_.size()];
    Copy copy = PinCopy(replica);
    if (copy == nullptr) {
      if (!replica.is_lost()) choice.reason = pjrt::CpuReason::kAway;
      continue;
    }
    if (replicas_.size() == 1) return {&replica, std::move(copy)};
    const pjrt::DeviceParameters& parameters = replica.parameters();
    const int64_t wait_ns = parameters.accelerator()->turns().ExpectedWaitNs(parameters.is_low());
    if (wait_ns >= least_ns) continue;
    least_ns = wait_ns;
    choice.replica = &replica;
    choice.copy = std::move(copy);
  }
  return choice;
}

// Takes the parameters of a replica; null if they are away, or if the replica is lost.
AcceleratedRunner::Copy AcceleratedRunner::PinCopy(const pjrt::RowProgram& replica) const {
  if (replica.is_lost()) return nullptr;
  Copy copy = replica.parameters().Pin();
  if (copy != nullptr) return copy;
  const Status uploaded = replica.parameters().upload_error();
  if (!uploaded.ok()) GiveUp(replica, uploaded);
  return nullptr;
}

void AcceleratedRunner::GiveUp(const pjrt::RowProgram& replica, const Status& error) const {
  const pjrt::Accelerator& accelerator = *replica.parameters().accelerator();
  accelerator.NoteFailure();
  if (!replica.CountAsLost()) return;
  LOG(ERROR) << "accelerator_lost: signature '" << signature_.name << "' leaves device "
             << accelerator.name()
             << ", and runs on other devices that have it, or on the CPU: " << error.message();
}

// Runs there, or returns the reason why the CPU has to. Its only error is DEADLINE_EXCEEDED.
StatusOr<std::optional<pjrt::CpuReason>> AcceleratedRunner::TryThere(
    const tensor::OutputSet& outputs, const tensor::TensorList& inputs, tensor::TensorList* result,
    int64_t* wait_ns) const {
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
    const Status ran = RunThere(choice, *rows, outputs, inputs, result, wait_ns);
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

// Runs a trial on each accelerator that is left, and that has what is tried. Its failure says
// nothing about the accelerator.
Status AcceleratedRunner::Try(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                              tensor::TensorList* result) const {
  const std::optional<int64_t> rows = RowsOf(inputs);
  if (!rows) return base::NotFound("the request has not the shapes of the signature's programs");
  Status tried = base::NotFound("no accelerator with the signature's programs is left");
  for (const pjrt::RowProgram* const replica : replicas_) {
    Choice choice{replica, PinCopy(*replica)};
    if (replica->is_lost()) continue;
    if (choice.copy == nullptr) {
      return {base::Code::kUnavailable, "the parameters are not on the accelerator now"};
    }
    int64_t wait_ns = 0;
    Status ran = RunThere(choice, *rows, outputs, inputs, result, &wait_ns);
    const bool is_missing = ran.code() == base::Code::kNotFound;
    if (!ran.ok() && !is_missing) return ran;
    if (ran.ok() || !tried.ok()) tried = std::move(ran);
  }
  return tried;
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
                                   const tensor::TensorList& inputs, tensor::TensorList* result,
                                   int64_t* wait_ns) const {
  std::vector<const char*> from;
  for (const Tensor& input : inputs.storage().tensors) {
    from.push_back(static_cast<const char*>(input.data()));
  }
  std::vector<Tensor> computed;
  std::vector<char*> to;
  for (const tensor::TensorSpec& output : signature_.outputs) {
    tensorflow::TensorShape shape({rows});
    for (size_t dim = 1; dim < output.dims.size(); ++dim) shape.AddDim(output.dims[dim]);
    computed.emplace_back(RunMemory(), static_cast<tensorflow::DataType>(output.dtype), shape);
    if (!computed.back().IsInitialized()) {
      return {base::Code::kResourceExhausted, "no memory is left for output '" + output.name + "'"};
    }
    to.push_back(static_cast<char*>(computed.back().data()));
  }
  MILLPOND_RETURN_IF_ERROR(
      choice.replica->Run(*choice.copy, rows, from, to, RunScope::CurrentDeadlineNs(), wait_ns));
  std::vector<Tensor>& wanted = result->storage().tensors;
  wanted.clear();
  for (size_t i = 0; i < computed.size(); ++i) {
    if (outputs.Contains(i)) wanted.push_back(std::move(computed[i]));
  }
  return {};
}

}  // namespace millpond::tf
