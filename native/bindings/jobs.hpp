// A job for the pool, together with the Python objects whose memory it uses.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <utility>

#include "bindings/arrays.hpp"
#include "core/jobs.hpp"

namespace penstock::bindings {

// Created, read and dropped with the GIL; run without it.
class HeldWork final : public Work {
  public:
    // `result` is called once, after a run that didn't fail, and may reference `work`.
    HeldWork(std::unique_ptr<Work> work, std::unique_ptr<Buffers> buffers, std::function<nanobind::object()> result)
        : work_(std::move(work)), buffers_(std::move(buffers)), result_(std::move(result)) {}

    void run() override { work_->run(); }
    nanobind::object result() { return result_(); }

  private:
    std::unique_ptr<Work> work_;
    std::unique_ptr<Buffers> buffers_;
    std::function<nanobind::object()> result_;
};

// A job in Python, until it is submitted.
struct PythonJob {
    std::shared_ptr<HeldWork> work;

    std::shared_ptr<HeldWork> take() {
        if (work == nullptr) throw nanobind::value_error("the job was submitted before");
        return std::move(work);
    }
};

}  // namespace penstock::bindings
