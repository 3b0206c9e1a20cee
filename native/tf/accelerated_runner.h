#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/executable_cache.h"
#include "native/pjrt/row_program.h"
#include "native/pjrt/run_figures.h"
#include "native/tensor/signature.h"
#include "native/tf/accelerator_use.h"
#include "native/tf/drafted_programs.h"
#include "native/tf/side_measurement.h"
#include "native/tf/signature_draft.h"
#include "native/tf/signature_runner.h"
#include "native/tf/signature_split.h"
#include "native/tf/split_runner.h"

namespace tensorflow {
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// The programs that were offered to trials.
struct OfferedPrograms {
  std::set<int64_t> rows;
  // Why others were left out that may be offered later: for lack of memory, or because an
  // accelerator fails now. "" if none was.
  std::string shortage;
  // Why others cannot be loaded. They are offered no more. "" if there is none.
  std::string damage;
};

// The signatures of a version that run on accelerators, with their parameters there.
//
// The part of a signature that XLA cannot compile stays on the CPU (signature_split.h). If nothing
// is left that is worth the way to the accelerator (device_worth.h), all of it does, with the
// reason.
class AcceleratedPrograms {
 public:
  // Compiles the programs that were `drafted`, and copies the variables to the accelerators. Tables
  // that another version has there are shared. Adds the nodes of host parts to `session`. Takes 0.2
  // to 1 s for each program and accelerator that is not in the cache. Returns RESOURCE_EXHAUSTED if
  // the variables are needed and do not fit there, and the plugin's errors. If they are not needed,
  // the CPU answers until they fit.
  static base::StatusOr<std::unique_ptr<AcceleratedPrograms>> Make(DraftedPrograms drafted,
                                                                   tensorflow::Session* session);

  // The programs that Make has compiled, and not found.
  int64_t compiled_count() const { return compiled_count_; }

  // Returns the programs, as serialized xla.HloModuleProtos, that run without autotuning although
  // the cache has no autotuned ones. None unless the use `tunes_later`.
  std::vector<std::string> UntunedPrograms(const std::string& cache_directory) const;
  // Offers the autotuned programs that the cache has by now to trials (pjrt::TunedTrial), in place
  // of programs that run without autotuning. Leaves out an accelerator that fails, and a program
  // that cannot be loaded, or for which there is no memory, on any of the others. Drops one that
  // cannot be loaded for another reason than that. 5 ms for each.
  // OfferTuned, UseTuned and WithdrawTuned: one thread at a time, beside requests.
  OfferedPrograms OfferTuned(const std::string& cache_directory);
  // Makes requests use the programs of `rows` rows that were offered, and of which a trial has
  // ended well: on each accelerator that has not lost the version. Returns their number.
  int64_t UseTuned(int64_t rows);
  // Frees the programs that are still offered.
  void WithdrawTuned();

  // Where each signature runs now.
  std::vector<AcceleratedSignature> signatures() const;
  // The bytes that the parameters take on each accelerator, if they are there.
  int64_t parameter_bytes() const;
  // The uploads to each accelerator.
  std::vector<pjrt::UploadFigures> upload_figures() const;
  // The runs of each signature that has programs, on each accelerator, since the load.
  std::vector<pjrt::RunFigures> run_figures() const;
  // Makes a runner on the CPU for a signature of the session.
  using MakeRunner =
      std::function<std::unique_ptr<SignatureRunner>(const tensor::Signature& signature)>;
  // The two sides of a signature; null if there is no choice.
  MeasuredSides* SidesOf(const std::string& signature) const;
  // Returns a runner that runs `signature` on the accelerator as far as it can run there; all on
  // the CPU if it cannot. This object and `signature` must outlive it.
  std::unique_ptr<SignatureRunner> Accelerate(const tensor::Signature& signature,
                                              const MakeRunner& make_runner);

 private:
  // The programs of a signature, in the order of the accelerators.
  using Programs = std::vector<std::unique_ptr<pjrt::RowProgram>>;

  AcceleratedPrograms() = default;
  base::StatusOr<Programs> Compile(const pjrt::ExecutableCache& cache,
                                   const std::vector<size_t>& parameter_indices,
                                   tensorflow::Session* session, SignatureDraft* draft);
  base::Status CompileSizes(const pjrt::ExecutableCache& cache, const SignatureDraft& draft,
                            pjrt::RowProgram* program, std::set<int64_t>* untuned_rows);
  pjrt::RowScatters CompileScatters(const pjrt::ExecutableCache& cache,
                                    const pjrt::Accelerator& accelerator,
                                    const std::vector<pjrt::HostTensor>& tensors);
  base::StatusOr<std::unique_ptr<pjrt::RowScatter>> CompileScatter(
      const pjrt::ExecutableCache& cache, const pjrt::Accelerator& accelerator,
      const pjrt::HostTensor& table);
  base::Status Upload(const AcceleratorUse& use, const pjrt::ExecutableCache& cache,
                      const std::vector<pjrt::HostTensor>& tensors);
  void Offer(const pjrt::ExecutableCache& cache, const std::string& signature, int64_t rows,
             OfferedPrograms* offered);
  static base::Status OfferTo(const Programs& programs, const pjrt::ExecutableCache& cache,
                              int64_t rows, const std::string& hlo, std::string* shortage);
  static bool IsOfDevice(const base::Status& failed, const pjrt::Accelerator& accelerator);
  static base::Status OfferThere(const pjrt::ExecutableCache& cache, pjrt::RowProgram& program,
                                 int64_t rows, const std::string& hlo);
  void NoteIfTuned(const std::string& signature, int64_t rows);

  std::vector<std::shared_ptr<pjrt::DeviceParameters>> parameters_;  // of each accelerator
  std::map<std::string, Programs, std::less<>> programs_;
  std::map<std::string, SignatureSplit, std::less<>> splits_;  // of the programs
  // The sides of the programs, unless all their runs are for the accelerator.
  std::map<std::string, std::unique_ptr<MeasuredSides>, std::less<>> sides_;
  // The programs without autotuning, by signature and rows; see `tunes_later`. Guarded by
  // `tuning_`, as what has changed in `signatures_`.
  std::map<std::string, std::map<int64_t, std::string>, std::less<>> untuned_;
  std::vector<AcceleratedSignature> signatures_;
  mutable std::mutex tuning_;
  int64_t compiled_count_ = 0;
};

// Runs a signature on the accelerator with the shortest expected wait, of those that have its
// programs. After a failure it leaves out the accelerator, which may be gone, and the others take
// over. The CPU runs a request that has not the shapes of the signature, and gives its error. It
// also runs requests while no accelerator is left or has the parameters, requests of threads that
// give way, and requests that have waited for long while others ran. A trial (pjrt::TunedTrial)
// runs on each accelerator in turn, and returns its error.
class AcceleratedRunner final : public DeviceRunner {
 public:
  // Borrows `programs`, which are equal but for their accelerators, and `signature`.
  AcceleratedRunner(std::unique_ptr<SignatureRunner> host,
                    const std::vector<const pjrt::RowProgram*>& programs,
                    const tensor::Signature& signature);

  const base::Status& made() const override { return host_->made(); }
  base::Status MakeCallable(const tensor::OutputSet& outputs) const override {
    return host_->MakeCallable(outputs);
  }
  base::Status RunInTurn(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                         tensor::TensorList* result, int64_t* wait_ns) const override;
  bool MayRun(std::optional<int64_t> rows) const override;
  bool IsThere() const override;
  // Counts it with those of the first accelerator.
  void CountCpuRun(pjrt::CpuReason reason) const override {
    replicas_[0]->counts().CountCpuRun(reason);
  }

 private:
  using Copy = std::shared_ptr<const pjrt::ParameterCopy>;

  // A replica and its parameters, which a run has until its end; or the reason why there is none.
  struct Choice {
    const pjrt::RowProgram* replica = nullptr;
    Copy copy;
    pjrt::CpuReason reason = pjrt::CpuReason::kLost;
  };

  bool HasProgramFor(int64_t rows) const;
  Choice Choose(size_t first) const;
  Copy PinCopy(const pjrt::RowProgram& replica) const;
  void GiveUp(const pjrt::RowProgram& replica, const base::Status& error) const;
  base::StatusOr<std::optional<pjrt::CpuReason>> TryThere(const tensor::OutputSet& outputs,
                                                          const tensor::TensorList& inputs,
                                                          tensor::TensorList* result,
                                                          int64_t* wait_ns) const;
  std::optional<int64_t> RowsOf(const tensor::TensorList& inputs) const;
  base::Status Try(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const;
  base::Status RunThere(const Choice& choice, int64_t rows, const tensor::OutputSet& outputs,
                        const tensor::TensorList& inputs, tensor::TensorList* result,
                        int64_t* wait_ns) const;

  const std::unique_ptr<SignatureRunner> host_;
  const std::vector<const pjrt::RowProgram*> replicas_;  // one or more
  const tensor::Signature& signature_;
  mutable std::atomic<size_t> next_first_{0};  // the replica at which the next choice begins
};

}  // namespace millpond::tf
