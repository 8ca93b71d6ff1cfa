/* Sensors below /sys: thermal zones, hwmon, cpufreq, cooling devices, the firmware of a Raspberry Pi, the cgroup's CPU
 * quota. Called by the server's sampling thread. See sensors.h. */
#include "base/sensors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PATH_BYTES 512

enum { EVENTS_CPU, EVENTS_CGROUP };

/* ---- files ---------------------------------------------------------------------------------------------------- */

static bool read_text(const char *directory, const char *name, char *out, size_t bytes)
{
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool ok = fgets(out, (int)bytes, file) != NULL;
    fclose(file);
    if (ok) out[strcspn(out, "\n")] = '\0';
    return ok && out[0] != '\0';
}

static bool read_number(const char *directory, const char *name, int base, double *value)
{
    char text[64], *end;
    if (!read_text(directory, name, text, sizeof text)) return false;
    *value = (double)strtoll(text, &end, base);
    return end != text;
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Numbers N of the entries prefixN, without any other ending, in ascending order. */
static int list_numbers(const char *directory, const char *prefix, const char *ending, int numbers[DSE_MAX_SENSORS])
{
    int count = 0;
    size_t n = strlen(prefix);
    DIR *folder = opendir(directory);
    for (struct dirent *entry; folder != NULL && count < DSE_MAX_SENSORS && (entry = readdir(folder)) != NULL;) {
        const char *digits = entry->d_name + n;
        if (strncmp(entry->d_name, prefix, n) != 0 || *digits < '0' || *digits > '9') continue;
        char *end;
        long number = strtol(digits, &end, 10);
        if (strcmp(end, ending) == 0 && number < 1 << 20) numbers[count++] = (int)number;
    }
    if (folder != NULL) closedir(folder);
    qsort(numbers, (size_t)count, sizeof *numbers, ascending);
    return count;
}

/* A second sensor of one name gets its number too: two series of the same labels would spoil the whole answer. */
static void add(struct dse_sensor_list *list, const char *label, int number, double value)
{
    if (list->count == DSE_MAX_SENSORS) return;
    struct dse_sensor *sensor = &list->items[list->count];
    snprintf(sensor->label, sizeof sensor->label, "%.36s", label);
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].label, sensor->label) != 0) continue;
        snprintf(sensor->label, sizeof sensor->label, "%.36s_%d", label, number);
        break;
    }
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->items[i].label, sensor->label) == 0) return;
    sensor->value = value;
    list->count++;
}

/* ---- kinds ---------------------------------------------------------------------------------------------------- */

static void read_zones(const char *root, struct dse_sensor_list *out)
{
    char directory[PATH_BYTES], zone[2 * PATH_BYTES], type[64];
    int numbers[DSE_MAX_SENSORS];
    snprintf(directory, sizeof directory, "%s/sys/class/thermal", root);
    int count = list_numbers(directory, "thermal_zone", "", numbers);
    for (int i = 0; i < count; i++) {
        double milli;
        snprintf(zone, sizeof zone, "%s/thermal_zone%d", directory, numbers[i]);
        if (!read_number(zone, "temp", 10, &milli)) continue; /* a zone may be switched off */
        if (!read_text(zone, "type", type, sizeof type)) snprintf(type, sizeof type, "zone%d", numbers[i]);
        add(out, type, numbers[i], milli / 1e3);
    }
}

/* Label of channel N of a hwmon chip: what its driver calls it, else "chip" + what is measured. */
static void channel_label(const char *chip, const char *prefix, int number, char *out, size_t bytes)
{
    char file[64], name[40] = "hwmon", label[40];
    snprintf(file, sizeof file, "%s%d_label", prefix, number);
    read_text(chip, "name", name, sizeof name);
    if (read_text(chip, file, label, sizeof label))
        snprintf(out, bytes, "%.20s %.20s", name, label);
    else
        snprintf(out, bytes, "%.30s", name);
}

static void read_hwmon(const char *root, bool temperatures, struct dse_sensors *out)
{
    char directory[PATH_BYTES], chip[2 * PATH_BYTES], label[48], file[64];
    int chips[DSE_MAX_SENSORS], channels[DSE_MAX_SENSORS];
    double value, ampere;
    snprintf(directory, sizeof directory, "%s/sys/class/hwmon", root);
    int count = list_numbers(directory, "hwmon", "", chips);
    for (int c = 0; c < count; c++) {
        snprintf(chip, sizeof chip, "%s/hwmon%d", directory, chips[c]);
        int n = temperatures ? list_numbers(chip, "temp", "_input", channels) : 0;
        for (int i = 0; i < n; i++) {
            snprintf(file, sizeof file, "temp%d_input", channels[i]);
            if (!read_number(chip, file, 10, &value)) continue;
            channel_label(chip, "temp", channels[i], label, sizeof label);
            add(&out->temperatures, label, channels[i], value / 1e3);
        }
        n = list_numbers(chip, "power", "_input", channels); /* microwatts */
        for (int i = 0; i < n; i++) {
            snprintf(file, sizeof file, "power%d_input", channels[i]);
            if (!read_number(chip, file, 10, &value)) continue;
            channel_label(chip, "power", channels[i], label, sizeof label);
            add(&out->powers, label, channels[i], value / 1e6);
        }
        /* Chips that tell volts and amperes of a rail under one number (the INA3221 of a Jetson): mV times mA. */
        n = list_numbers(chip, "curr", "_input", channels);
        for (int i = 0; i < n; i++) {
            snprintf(file, sizeof file, "curr%d_input", channels[i]);
            if (!read_number(chip, file, 10, &ampere)) continue;
            snprintf(file, sizeof file, "in%d_input", channels[i]);
            if (!read_number(chip, file, 10, &value)) continue;
            channel_label(chip, "in", channels[i], label, sizeof label);
            add(&out->powers, label, channels[i], value * ampere / 1e6);
        }
    }
}

static void read_frequencies(const char *root, struct dse_sensor_list *out)
{
    char directory[PATH_BYTES], cpu[2 * PATH_BYTES], label[16];
    int numbers[DSE_MAX_SENSORS];
    snprintf(directory, sizeof directory, "%s/sys/devices/system/cpu", root);
    int count = list_numbers(directory, "cpu", "", numbers);
    for (int i = 0; i < count; i++) {
        double kilohertz;
        snprintf(cpu, sizeof cpu, "%s/cpu%d/cpufreq", directory, numbers[i]);
        snprintf(label, sizeof label, "%d", numbers[i]);
        if (read_number(cpu, "scaling_cur_freq", 10, &kilohertz)) add(out, label, numbers[i], kilohertz * 1e3);
    }
}

/* ---- throttling ----------------------------------------------------------------------------------------------- */

/* Whether a count has gone up since the last reading. */
static bool rose(struct dse_sensors *sensors, int which, double count)
{
    uint64_t last = sensors->throttle_events[which];
    sensors->throttle_events[which] = (uint64_t)count + 1; /* 0: never read */
    return last != 0 && (uint64_t)count + 1 > last;
}

/* A cooling device of the CPU that is at work, or a count of events that went up. */
static void read_thermal_throttling(const char *root, struct dse_sensors *out)
{
    char directory[PATH_BYTES], device[2 * PATH_BYTES], type[64];
    int numbers[DSE_MAX_SENSORS];
    double value;
    bool known = false, active = false;
    snprintf(directory, sizeof directory, "%s/sys/class/thermal", root);
    int count = list_numbers(directory, "cooling_device", "", numbers);
    for (int i = 0; i < count; i++) {
        snprintf(device, sizeof device, "%s/cooling_device%d", directory, numbers[i]);
        if (!read_text(device, "type", type, sizeof type)) continue;
        if (strcasestr(type, "cpu") == NULL && strcasecmp(type, "Processor") != 0) continue;
        if (!read_number(device, "cur_state", 10, &value)) continue;
        known = true;
        active = active || value > 0;
    }
    snprintf(directory, sizeof directory, "%s/sys/devices/system/cpu/cpu0/thermal_throttle", root);
    if (read_number(directory, "package_throttle_count", 10, &value)) {
        known = true;
        active = rose(out, EVENTS_CPU, value) || active;
    }
    if (known) add(&out->throttled, "thermal", 0, active);
}

/* Bits 0 to 3 of a Raspberry Pi: too little voltage, clock capped, throttled, soft limit of the temperature. */
static void read_firmware_throttling(const char *root, struct dse_sensors *out)
{
    char directory[PATH_BYTES];
    double bits;
    snprintf(directory, sizeof directory, "%s/sys/devices/platform/soc/soc:firmware", root);
    if (read_number(directory, "get_throttled", 16, &bits))
        add(&out->throttled, "firmware", 0, ((unsigned)bits & 15u) != 0);
}

/* cgroup v2: periods in which our group had used its quota up. */
static void read_quota_throttling(const char *root, struct dse_sensors *out)
{
    char path[PATH_BYTES], line[PATH_BYTES], group[PATH_BYTES / 2] = "";
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "0::/", 4) == 0)
            snprintf(group, sizeof group, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (file != NULL) fclose(file);
    snprintf(path, sizeof path, "%.100s/sys/fs/cgroup%s/cpu.stat", root, group);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "nr_throttled ", 13) != 0) continue;
        add(&out->throttled, "quota", 0, rose(out, EVENTS_CGROUP, (double)strtoull(line + 13, NULL, 10)));
    }
    if (file != NULL) fclose(file);
}

void dse_sensors_read(const char *root, struct dse_sensors *sensors)
{
    sensors->temperatures.count = sensors->frequencies.count = 0;
    sensors->powers.count = sensors->throttled.count = 0;
    read_zones(root, &sensors->temperatures);
    /* Thermal zones are what hwmon shows again; desktops have only the latter. */
    read_hwmon(root, sensors->temperatures.count == 0, sensors);
    read_frequencies(root, &sensors->frequencies);
    read_thermal_throttling(root, sensors);
    read_firmware_throttling(root, sensors);
    read_quota_throttling(root, sensors);
}
