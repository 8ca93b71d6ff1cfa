/* The device implementations that device.c chooses from. */
#ifndef DSE_DEVICE_BACKENDS_H
#define DSE_DEVICE_BACKENDS_H

#include "device/device.h"

enum dse_status dse_device_cpu_open(int n_threads, struct dse_device **device, struct dse_error *err);
void dse_device_cpu_close(struct dse_device *device);

#endif
