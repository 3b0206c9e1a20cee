#include "native/inference/run_log.h"

#include <string>
#include <utility>

#include "native/base/wire_writer.h"
#include "native/inference/model_spec.h"
#include "native/inference/predict_codec.h"
#include "native/tensor/tensor_access.h"

namespace millpond::inference {
namespace {

// The fields of tensorflow_serving/apis/prediction_log.proto and logging.proto.
constexpr uint32_t kLogMetadata = 1;
constexpr uint32_t kPredictLog = 6;
constexpr uint32_t kPredictLogRequest = 1;
constexpr uint32_t kPredictLogResponse = 2;
constexpr uint32_t kMetadataModelSpec = 1;
constexpr uint32_t kMetadataSampling = 2;
constexpr uint32_t kSamplingRate = 1;

constexpr size_t kSamplingBytes = 1 + sizeof(double);  // a tag and a fixed64

// Lists the outputs that may be logged. The results are in the order of the signature's outputs.
std::vector<PredictReply::Output> NamedOutputs(const tensor::Signature& signature,
                                               const tensor::OutputSet& outputs,
                                               const servable::LoggedNames& names) {
  std::vector<PredictReply::Output> named;
  size_t index = 0;
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (!outputs.Contains(i)) continue;
    const std::string& name = signature.outputs[i].name;
    if (names.Contains(name)) named.push_back({&name, index});
    ++index;
  }
  return named;
}

// A PredictionLog of one run. It computes the sizes first, and then writes each tensor of the run
// once.
class PredictionLogWriter {
 public:
  // Borrows all.
  PredictionLogWriter(double sampling_rate, const PredictRequestParts& request,
                      const PredictReply& reply)
      : spec_(reply.model_spec),
        sampling_rate_(sampling_rate),
        request_(request),
        response_(reply),
        spec_bytes_(EncodedModelSpecBytes(spec_)),
        metadata_bytes_(base::DelimitedBytes(kMetadataModelSpec, spec_bytes_) +
                        base::DelimitedBytes(kMetadataSampling, kSamplingBytes)),
        request_bytes_(EncodedPredictRequestBytes(request)),
        log_bytes_(base::DelimitedBytes(kPredictLogRequest, request_bytes_) +
                   base::DelimitedBytes(kPredictLogResponse, response_.bytes())) {}

  size_t bytes() const {
    return base::DelimitedBytes(kLogMetadata, metadata_bytes_) +
           base::DelimitedBytes(kPredictLog, log_bytes_);
  }

  void Write(char* to) const {
    base::WireWriter writer(to);
    writer.Delimited(kLogMetadata, metadata_bytes_);
    writer.Delimited(kMetadataModelSpec, spec_bytes_);
    WriteModelSpec(spec_, &writer);
    writer.Delimited(kMetadataSampling, kSamplingBytes);
    writer.Tag(kSamplingRate, base::WireType::kFixed64);
    writer.Bytes(&sampling_rate_, sizeof sampling_rate_);
    writer.Delimited(kPredictLog, log_bytes_);
    writer.Delimited(kPredictLogRequest, request_bytes_);
    WritePredictRequest(request_, &writer);
    writer.Delimited(kPredictLogResponse, response_.bytes());
    response_.Write(&writer);
  }

 private:
  const ModelSpec& spec_;
  const double sampling_rate_;
  const PredictRequestParts& request_;
  const PredictReplyWriter response_;
  const size_t spec_bytes_;
  const size_t metadata_bytes_;
  const size_t request_bytes_;
  const size_t log_bytes_;
};

}  // namespace

void RunLog::Keep(const servable::PreparedRun& run,
                  const std::shared_ptr<servable::RequestLog>& log) {
  if (log == nullptr) return;
  settings_ = log->Sample();
  if (settings_ == nullptr) return;
  log_ = log;
  inputs_ = tensor::ShareTensors(run.inputs);
  for (size_t i = 0; i < run.signatures.size(); ++i) {
    const tensor::Signature* const signature = run.signatures[i];
    runs_.push_back({signature,
                     run.outputs ? *run.outputs : tensor::OutputSet::All(signature->outputs.size()),
                     tensor::ShareTensors(run.results[i])});
  }
}

void RunLog::Give(int64_t received_ns, int64_t latency_ns, std::string_view trace_id) {
  if (!is_kept()) return;
  servable::LoggedRequest request;
  request.received_ns = received_ns;
  request.latency_ns = latency_ns;
  request.version = handle_->id().version;
  trace_id.copy(request.trace_id, sizeof request.trace_id);
  for (Run& run : runs_) GiveRun(&run, request);
  Discard();
}

void RunLog::Discard() {
  // The tensors go first, because they may be in the version's memory.
  runs_.clear();
  inputs_ = {};
  handle_ = {};
  settings_ = nullptr;
  log_.reset();
}

void RunLog::GiveRun(Run* run, const servable::LoggedRequest& request) {
  const tensor::Signature& signature = *run->signature;
  PredictReply reply;
  reply.model_spec.name = handle_->id().name;
  reply.model_spec.version = request.version;
  reply.model_spec.signature_name = signature.name;
  reply.outputs = NamedOutputs(signature, run->outputs, settings_->outputs);
  reply.tensors = std::move(run->results);
  reply.encoding = tensor::TensorEncoding::kTensorContent;
  const PredictRequestParts parts{reply.model_spec.name, signature, run->outputs, inputs_,
                                  &settings_->inputs};
  const PredictionLogWriter log(settings_->sampling_rate, parts, reply);
  log_->Put(request, log.bytes(), [&](char* to) { log.Write(to); });
}

}  // namespace millpond::inference
