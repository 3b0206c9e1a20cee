#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "native/base/clock.h"
#include "native/python/binding.h"
#include "native/rpc/predict.h"
#include "native/rpc/predict_codec.h"
#include "native/servable/saved_model_servable.h"
#include "native/tf/saved_model.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using servable::ServableEntry;

// A version on its way to be a servable.
class PySavedModelLoad {
 public:
  PySavedModelLoad(std::string name, int64_t version, std::string directory,
                   std::vector<std::string> tags)
      : id_{std::move(name), version},
        model_(std::make_unique<tf::SavedModel>(std::move(directory), std::move(tags))) {}
  ~PySavedModelLoad() {
    const nb::gil_scoped_release release;
    model_.reset();
  }
  PySavedModelLoad(const PySavedModelLoad&) = delete;
  PySavedModelLoad& operator=(const PySavedModelLoad&) = delete;

  template <base::Status (tf::SavedModel::*kStep)()>
  void Run() {
    ThrowIfError(CheckIsUnfinished());
    ThrowIfError(WithoutGil([this] { return (model_.get()->*kStep)(); }));
  }

  std::unique_ptr<PyServable> Finish() {
    ThrowIfError(CheckIsUnfinished());
    if (!model_->IsReady()) {
      ThrowIfError(base::FailedPrecondition("finish: the steps of the load are not all done"));
    }
    return std::make_unique<PyServable>(std::make_shared<ServableEntry>(
        std::make_unique<servable::SavedModelServable>(id_, std::move(model_))));
  }

 private:
  base::Status CheckIsUnfinished() const {
    if (model_ != nullptr) return {};
    return base::FailedPrecondition("the load of " + id_.name + " version " +
                                    std::to_string(id_.version) + " is finished");
  }

  servable::ServableId id_;
  std::unique_ptr<tf::SavedModel> model_;
};

struct PyServableStatistics {
  metrics::RequestSnapshot requests;

  int64_t RequestCount() const {
    int64_t count = 0;
    for (const int64_t of_code : requests.count_by_code) count += of_code;
    return count;
  }
  int64_t FailedCount() const { return RequestCount() - requests.count_by_code[0]; }
};

void CheckIsAlive(const ServableEntry& entry) {
  if (!entry.is_destroyed()) return;
  ThrowIfError(base::FailedPrecondition(entry.id().name + " version " +
                                        std::to_string(entry.id().version) + " is destroyed"));
}

base::StatusOr<std::string> PredictBytes(const servable::Servable& servable,
                                         std::string_view bytes) {
  rpc::PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(rpc::DecodePredictRequest({&bytes, 1}, &request));
  rpc::PredictReply reply;
  MILLPOND_RETURN_IF_ERROR(rpc::Predict(servable, request, {}, &reply));
  const rpc::PredictReplyEncoder encoder(reply);
  std::string encoded(encoder.encoded_bytes(), '\0');
  encoder.Write(encoded.data());
  return encoded;
}

nb::bytes Predict(const PyServable& self, nb::bytes request) {
  CheckIsAlive(*self.entry());
  const std::string reply = ValueOrThrow(WithoutGil([&] {
    const servable::ServableHandle handle(self.entry().get());
    return PredictBytes(*handle, {request.c_str(), request.size()});
  }));
  return nb::bytes(reply.data(), reply.size());
}

nb::bytes SignatureDefMap(const PyServable& self) {
  CheckIsAlive(*self.entry());
  const std::string& map = self.entry()->servable().signature_def_map();
  return nb::bytes(map.data(), map.size());
}

void RegisterStatistics(nb::module_& module) {
  using Statistics = PyServableStatistics;
  const auto quantile = [](double q) {
    return [q](const Statistics& self) { return self.requests.latency.ValueAtQuantile(q); };
  };
  nb::class_<Statistics>(module, "ServableStatistics", nb::is_final())
      .def_prop_ro("request_count", &Statistics::RequestCount)
      .def_prop_ro("failed_count", &Statistics::FailedCount)
      .def_prop_ro("latency_ns_p50", quantile(0.5))
      .def_prop_ro("latency_ns_p99", quantile(0.99))
      .def_prop_ro("latency_ns_p999", quantile(0.999))
      .def_prop_ro("latency_ns_max",
                   [](const Statistics& self) { return self.requests.latency.max_ns(); });
}

void RegisterLoadedServable(nb::module_& module) {
  nb::class_<PyServable>(module, "Servable", nb::is_final())
      .def_prop_ro("name", [](const PyServable& self) { return self.entry()->id().name; })
      .def_prop_ro("version", [](const PyServable& self) { return self.entry()->id().version; })
      .def_prop_ro("handle_count",
                   [](const PyServable& self) { return self.entry()->handle_count(); })
      .def("predict", &Predict, nb::arg("request"))
      .def("signature_def_map", &SignatureDefMap)
      .def("statistics",
           [](const PyServable& self) {
             return PyServableStatistics{self.entry()->requests().Snapshot()};
           })
      .def(
          "quiesce",
          [](const PyServable& self, double timeout_seconds) {
            return ValueOrThrow(
                WithoutGil([&] { return self.entry()->Quiesce(SecondsToNs(timeout_seconds)); }));
          },
          nb::arg("timeout_seconds"))
      .def("destroy", [](const PyServable& self) {
        ThrowIfError(WithoutGil([&] { return self.entry()->Destroy(); }));
      });
}

}  // namespace

void RegisterServable(nb::module_& module) {
  RegisterStatistics(module);
  RegisterLoadedServable(module);
  using Load = PySavedModelLoad;
  nb::class_<Load>(module, "SavedModelLoad", nb::is_final())
      .def(nb::init<std::string, int64_t, std::string, std::vector<std::string>>(), nb::arg("name"),
           nb::arg("version"), nb::arg("directory"), nb::arg("tags"))
      .def("read_graph", &Load::Run<&tf::SavedModel::ReadGraph>)
      .def("create_session", &Load::Run<&tf::SavedModel::CreateSession>)
      .def("restore", &Load::Run<&tf::SavedModel::Restore>)
      .def("run_init", &Load::Run<&tf::SavedModel::RunInit>)
      .def("make_callables", &Load::Run<&tf::SavedModel::MakeCallables>)
      .def("finish", &Load::Finish);
}

}  // namespace millpond::python
