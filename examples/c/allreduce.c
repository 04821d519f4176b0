/* SPDX-License-Identifier: Apache-2.0
 * Two workers of this process add their gradients while compressed, twice: through a pipeline and
 * with a fold of our own. Build: cc allreduce.c -laddend -lpthread */
#include <addend/addend.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { kWorld = 2, kCount = 100000 };

static void check(addend_status status, const char* what) {
  if (status == ADDEND_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, addend_status_name(status), addend_last_error());
  exit(1);
}

static addend_codec* make_codec(const char* spec, int worker) {
  addend_layout layout;
  addend_layout_init(&layout, sizeof layout);
  layout.count = kCount;
  layout.world = kWorld;
  layout.worker = (uint32_t)worker;
  addend_codec* codec = NULL;
  check(addend_codec_create(spec, &layout, &codec), "addend_codec_create");
  return codec;
}

/* Worker w has every tenth element, shifted by w: some positions overlap, most do not. */
static float* make_gradient(int worker) {
  float* gradient = calloc(kCount, sizeof(float));
  for (int i = worker; i < kCount; i += 10 + worker)
    gradient[i] = 1.0f + (float)worker;
  return gradient;
}

static float expected(int i) {
  return (i % 10 == 0 ? 1.0f : 0.0f) + (i >= 1 && (i - 1) % 11 == 0 ? 2.0f : 0.0f);
}

static void verify(const float* gradient, const char* what) {
  for (int i = 0; i < kCount; ++i) {
    if (gradient[i] == expected(i)) continue;
    fprintf(stderr, "%s: element %d is %g, not %g\n", what, i, gradient[i], expected(i));
    exit(1);
  }
}

typedef struct worker_arguments {
  int worker;
  addend_reducer* reducer;
} worker_arguments;

static void* run_worker(void* opaque) {
  const worker_arguments* arguments = opaque;
  addend_codec* codec = make_codec("exact", arguments->worker);
  float* gradient = make_gradient(arguments->worker);
  addend_pipeline* pipeline = NULL;
  uint64_t ticket = 0;
  check(addend_pipeline_create(arguments->reducer, 0, 0, &pipeline), "addend_pipeline_create");
  check(addend_pipeline_submit(pipeline, codec, gradient, &ticket), "addend_pipeline_submit");
  check(addend_pipeline_wait(pipeline, ticket), "addend_pipeline_wait");
  verify(gradient, "pipeline");
  addend_report report = {.size = sizeof(addend_report)};
  check(addend_codec_report(codec, &report), "addend_codec_report");
  if (arguments->worker == 0) {
    printf("%s: %llu bytes on the wire instead of %llu, %llu non-zeros in the union\n", report.mode,
           (unsigned long long)report.wire_bytes, (unsigned long long)report.dense_bytes,
           (unsigned long long)report.union_nonzeros);
  }
  addend_pipeline_destroy(pipeline);
  addend_codec_destroy(codec);
  free(gradient);
  return NULL;
}

/* The same with the caller as the network: any engine that can add could stand here. */
static void fold_by_hand(void) {
  addend_codec* codecs[kWorld] = {make_codec("exact:mode=packed", 0),
                                  make_codec("exact:mode=packed", 1)};
  float* gradients[kWorld] = {make_gradient(0), make_gradient(1)};
  addend_round rounds[kWorld];
  for (int w = 0; w < kWorld; ++w)
    check(addend_codec_begin(codecs[w], gradients[w]), "addend_codec_begin");
  for (;;) {
    for (int w = 0; w < kWorld; ++w)
      check(addend_codec_next_round(codecs[w], &rounds[w]), "addend_codec_next_round");
    if (rounds[0].plane_count == 0) break;
    for (uint32_t p = 0; p < rounds[0].plane_count; ++p) {
      addend_plane* a = &rounds[0].planes[p];
      addend_plane* b = &rounds[1].planes[p];
      check(addend_fold(a->op, a->data, b->data, a->lanes), "addend_fold");
      /* b must hold the sum as well: a max or an OR with it makes them equal, but a copy is
       * simplest. */
      for (uint64_t i = 0; i < addend_op_bytes(a->op, a->lanes); ++i)
        ((char*)b->data)[i] = ((char*)a->data)[i];
    }
  }
  for (int w = 0; w < kWorld; ++w) {
    check(addend_codec_finish(codecs[w], gradients[w]), "addend_codec_finish");
    verify(gradients[w], "by hand");
    addend_codec_destroy(codecs[w]);
    free(gradients[w]);
  }
}

int main(void) {
  if (addend_abi_version() != ADDEND_ABI_VERSION) return 1;
  addend_reducer* reducers[kWorld];
  check(addend_local_create(kWorld, reducers), "addend_local_create");
  pthread_t threads[kWorld];
  worker_arguments arguments[kWorld];
  for (int w = 0; w < kWorld; ++w) {
    arguments[w] = (worker_arguments){w, reducers[w]};
    pthread_create(&threads[w], NULL, run_worker, &arguments[w]);
  }
  for (int w = 0; w < kWorld; ++w)
    pthread_join(threads[w], NULL);
  for (int w = 0; w < kWorld; ++w)
    addend_reducer_destroy(reducers[w]);
  fold_by_hand();
  printf("exact on both workers\n");
  return 0;
}
