/* What the machine tells of its heat, clock and power, from /sys. A sensor that is not there, or cannot be read, is
 * simply absent. Reading may take milliseconds (some ask a microcontroller): never on a thread that others wait for.
 *
 * `root` is the file system root to read below: "" in production, a fake tree in tests.
 */
#ifndef DSE_BASE_SENSORS_H
#define DSE_BASE_SENSORS_H

#include <stdbool.h>
#include <stdint.h>

#define DSE_MAX_SENSORS 256 /* of a kind */

struct dse_sensor {
    char label[48];
    double value;
};

struct dse_sensor_list {
    int count;
    struct dse_sensor items[DSE_MAX_SENSORS]; /* labels are unique */
};

struct dse_sensors {
    struct dse_sensor_list temperatures; /* degrees Celsius, by zone */
    struct dse_sensor_list frequencies;  /* hertz, by CPU number */
    struct dse_sensor_list powers;       /* watts, by rail */
    struct dse_sensor_list throttled;    /* 0 or 1, by source */
    uint64_t throttle_events[2];         /* counts of the last reading: what has gone up since is throttled now */
};

/* Reads all. sensors: that of the last reading, or zeroed. */
void dse_sensors_read(const char *root, struct dse_sensors *sensors);

#endif
